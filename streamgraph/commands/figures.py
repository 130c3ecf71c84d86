"""The figures of a schedule: how many hazards there are, and how few waits, events and record_stream calls keep them."""

from __future__ import annotations

from dataclasses import dataclass

from streamgraph.commands.report import aligned, many
from streamgraph.model import HOST, MAIN, Kind
from streamgraph.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Figures:
    """What a schedule needs, beside what one would write by hand without looking at the whole.

    By hand: a wait for each pair of tasks on two lanes that a hazard orders, and for each side lane one at its start and one at the end; an
    event for each task waited for in that way; a `record_stream` for each value and each other lane that uses it.
    """

    hazards: int
    across: int
    waits: int
    waits_by_hand: int
    events: int
    events_by_hand: int
    record_streams: int
    record_streams_by_hand: int
    host_waits: int

    def to_dict(self) -> dict[str, int]:
        """Plain data for `--json`."""
        return {
            "hazards": self.hazards, "hazards_across_lanes": self.across, "waits": self.waits, "waits_by_hand": self.waits_by_hand,
            "events": self.events, "events_by_hand": self.events_by_hand, "record_streams": self.record_streams,
            "record_streams_by_hand": self.record_streams_by_hand, "host_waits": self.host_waits,
        }  # fmt: skip

    def table(self) -> str:
        """The figures in words, one line each."""
        def saved(count: int, by_hand: int, what: str) -> str:
            return f"saved {by_hand - count:,}: {what} would be {by_hand:,}" if by_hand > count else ""

        rows = [
            (many(self.waits, "wait"), saved(self.waits, self.waits_by_hand, "one for each pair of tasks to be ordered")),
            (many(self.events, "event"), saved(self.events, self.events_by_hand, "one for each task that another lane depends on")),
            (many(self.record_streams, "record_stream", "record_stream"),
             saved(self.record_streams, self.record_streams_by_hand, "one for each value and other lane that uses it")),
        ]  # fmt: skip
        if self.host_waits:
            rows.append((many(self.host_waits, "host wait"), "before the host touches memory that the device uses"))
        digits = max(text.index(" ") for text, _ in rows)
        rows = [(text.rjust(digits + len(text) - text.index(" ")), why) for text, why in rows]
        hazards = f"{many(self.hazards, 'hazard')} ({self.across:,} between lanes) {'is' if self.hazards == 1 else 'are'} kept by"
        return "\n".join([hazards, aligned(rows, indent="  ")])


def figures_of(schedule: Schedule) -> Figures:
    """The figures of a schedule."""
    lane_of, tasks, counts = schedule.lane_of, schedule.program.tasks, schedule.counts
    lane = [lane_of[task.name] for task in tasks]
    pairs: list[tuple[int, int]] = [(a, b) for a, b in schedule.graph.edges if lane[a] != lane[b] and HOST not in (lane[a], lane[b])]
    hazards = sum(len(schedule.graph.edges[edge]["hazards"]) for edge in schedule.graph.edges)
    across = sum(len(schedule.graph.edges[a, b]["hazards"]) for a, b in schedule.graph.edges if lane[a] != lane[b])
    side = [name for name in dict.fromkeys(lane) if name not in (MAIN, HOST)]
    last_of = {name: index for index, name in enumerate(lane)}
    waited_for = {earlier for earlier, _ in pairs} | {last_of[name] for name in side}
    return Figures(
        hazards=hazards,
        across=across,
        waits=counts.waits,
        waits_by_hand=max(counts.waits, len(pairs) + 2 * len(side)),
        events=counts.events,
        events_by_hand=max(counts.events, len(waited_for) + bool(side)),
        record_streams=counts.record_streams,
        record_streams_by_hand=max(counts.record_streams, _foreign_uses(schedule, lane)),
        host_waits=counts.host_waits,
    )


def _foreign_uses(schedule: Schedule, lane: list[str]) -> int:
    """How many (value, lane) pairs there are where a stream uses a value that another stream allocated; exit uses the outputs on main."""
    accesses = schedule.accesses
    uses: dict[int, set[str]] = {number: {MAIN} for _, number in accesses.outputs}
    for index, found in enumerate(accesses.of_task):
        for access in found:
            uses.setdefault(access.storage, set()).add(lane[index])
    total = 0
    for number, lanes in uses.items():
        storage = accesses.storages[number]
        if storage.kind is Kind.VALUE and not storage.host and storage.producer is not None:
            total += len(lanes - {lane[storage.producer], HOST})
    return total
