"""What `run` finds: the results, held against those of the tasks one after another, and what there is to say about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamgraph.commands.loop import Planned
from streamgraph.commands.measured import measured_run
from streamgraph.commands.report import Report, aligned, many
from streamgraph.commands.statistics import STATISTICS, statistics_of

if TYPE_CHECKING:
    import torch

    from streamgraph.measured import MeasuredTimeline
    from streamgraph.schedule import Schedule
    from streamgraph.simulate import Timeline


class Results:
    """A run, and what there is to say about it."""

    def __init__(
        self, schedule: Schedule, ops: str | None, inputs: tuple[str, ...], device: str, executor: str, seed: int, timeline: Timeline,
        *, check: bool, iterations: int | None = None, loop: Planned | None = None,
    ) -> None:
        import torch

        from streamgraph.binding import made_up, written_in_place
        from streamgraph.compare import delta
        from streamgraph.executors.choose import chosen
        from streamgraph.executors.device import find
        from streamgraph.executors.watched import copied
        from streamgraph.files import load_inputs
        from streamgraph.operators import load_operators
        from streamgraph.runner import Runner

        self.schedule, self.seed, self.timeline, self.iterations, self.loop = schedule, seed, timeline, iterations, loop
        inflight = loop.loop.inflight if loop is not None else None
        location = find(device, schedule.program).location
        operators = load_operators(ops) if ops else None
        given = load_inputs(schedule.program, inputs, location)
        self.made_up = made_up(schedule.program, given, location, seed)
        given = {**self.made_up, **given}
        self._given, self._operators = given, operators
        written = [name for name in written_in_place(schedule.program, schedule.accesses) if name in given]

        self.location, self.executor = location, chosen(executor, location)

        def once(which: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
            """The (last) results; and those of all iterations, with the inputs that the program changes in place."""
            torch.manual_seed(seed)
            tensors = {**given, **{name: copied(given[name]) for name in written}}
            bound = tensors if iterations is not None else None
            with Runner(schedule, bound, ops=operators, device=device, executor=which, seed=seed) as runner:
                if iterations is None:
                    results = [runner(tensors)]
                elif which == "sequential":
                    results = [runner() for _ in range(iterations)]
                else:
                    results = list(runner.map(({} for _ in range(iterations)), inflight=inflight))
                if location.type == "cuda":
                    torch.cuda.synchronize(location)
            found = {
                f"{name} (iteration {number})" if iterations is not None else name: value
                for number, result in enumerate(results) for name, value in result.items()
            }  # fmt: skip
            return dict(results[-1]), {**found, **{f"{name} (input)": tensors[name] for name in written}}

        self.outputs, found = once(executor)
        self.checked: int | None = None
        self.differing: list[str] = []
        if check and self.executor != "sequential":
            expected = once("sequential")[1]
            # The first use of a kernel loads it, which makes the GPU wait and hides races; so there the plan is run again, warm.
            runs = [found] if location.type == "cpu" else [found, once(executor)[1]]
            self.checked = len(expected)
            self.differing = [name for name, mine in expected.items() if any(delta(mine, its[name]) is not None for its in runs)]

    def measure(self, report: Report) -> MeasuredTimeline:
        """When each task really begins and ends, in runs of its own."""
        return measured_run(
            report, self.schedule, self._given, self.timeline, ops=self._operators, device=str(self.location), executor=self.executor,
            seed=self.seed,
        )  # fmt: skip

    @property
    def headline(self) -> str:
        """Where it ran, and what that means for the figures."""
        name = self.schedule.program.name
        how = {
            "lanes": "a host thread per lane", "eager": "a stream per lane", "graph": "a CUDA graph", "sequential": "task after task",
        }[self.executor]  # fmt: skip
        if self.iterations is not None:
            name = f"{name}: {many(self.iterations, 'iteration')}"
        if self.location.type == "cpu":
            return f"{name} ran on the CPU ({how}): results are real, times are simulated."
        import torch

        return f"{name} ran on {torch.cuda.get_device_name(self.location)} ({how})."

    def verdict(self) -> list[str]:
        """The comparison with the tasks one after another, and the predicted time."""
        from streamgraph.commands.schedule import time_said

        if self.loop is None:
            lines = [f"Time:    {time_said(self.timeline)}"]
        else:
            lines = [f"Time:    {self.loop.time_said()}"]
            if self.checked and not self.differing:
                calls = f"{many(self.iterations or 0, 'call')} one after another, task after task"
                return [*lines, f"Check:   equal to {calls}, bit for bit ({many(self.checked, 'tensor')})"]
        if self.checked == 0:
            lines.append("Check:   nothing to compare: the program has no outputs")
        elif self.checked is not None and self.differing:
            lines.append(f"Check:   DIFFERS from the tasks one after another: {', '.join(self.differing)}")
        elif self.checked is not None:
            lines.append(f"Check:   equal to the tasks one after another, bit for bit ({many(self.checked, 'tensor')})")
        return lines

    def inputs_said(self) -> list[str]:
        """Which inputs were made up."""
        if not self.made_up:
            return []
        program = self.schedule.program
        left = dict.fromkeys(self.made_up)
        names: list[str] = []
        for family in program.families:
            if left and all(member in left for member in family.members):
                names.append(f"{family.name}@*")
                for member in family.members:
                    del left[member]
        return [f"Inputs:  made up by `init`, seed {self.seed}: {', '.join([*names, *left])}"]

    def outputs_said(self) -> list[str]:
        """The results as a table."""
        if not self.outputs:
            return []
        from streamgraph.calls import type_text

        rows: list[tuple[str, ...]] = [("result", "type", "smallest", "mean", "largest", "")]
        for name, value in self.outputs.items():
            *figures, remark = statistics_of(value)
            rows.append((name, type_text(value), *("" if figure is None else f"{figure:.6g}" for figure in figures), remark))
        last = [] if self.iterations is None else ["The last iteration's results:"]
        return ["", *last, aligned(rows, right=frozenset({2, 3, 4}))]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        from streamgraph.calls import type_text

        return {
            "device": str(self.location),
            "executor": self.executor,
            "iterations": self.iterations,
            "made_up": list(self.made_up),
            "checked": self.checked,
            "differing": self.differing,
            "outputs": {
                name: {"type": type_text(value), **dict(zip(STATISTICS, statistics_of(value), strict=True))}
                for name, value in self.outputs.items()
            },
        }
