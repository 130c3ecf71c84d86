"""Copy lanes: the copies of a loop that nobody pinned get lanes of their own, a lane for each direction.

The next item's upload must not queue behind this one's work, and each direction has an engine of its own: to and from each device, and from
each device to each other one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from streamgraph.devices import crosses, first_device, of_tasks
from streamgraph.model import CPU, Program, Stream, Task, number_of

UPLOADS, DOWNLOADS, HOPS = "h2d", "d2h", "p2p"


def with_copy_lanes(program: Program) -> Program:
    """The program with its free copies pinned to such lanes, which have high priority."""
    several = len(program.devices) > 1
    known = {stream.name for stream in program.streams}
    pinned = known | {task.stream for task in program.tasks if task.stream is not None}
    added = dict.fromkeys((UPLOADS, DOWNLOADS))
    tasks = []
    for task, device in zip(program.tasks, of_tasks(program), strict=True):
        if task.is_copy and task.stream is None and not task.host:
            lane = _direction(task, device, program)
            if lane:
                lane = unused(lane, pinned) if several else lane  # who is pinned there may be on another device
                added[lane] = None
                task = replace(task, stream=lane)
        tasks.append(task)
    streams = tuple(Stream(name, "high") for name in added if name not in known)
    return replace(program, tasks=tuple(tasks), streams=program.streams + streams)


def _direction(task: Task, device: str, program: Program) -> str:
    """The lane of a free copy that runs on `device`; "" where it stays there."""
    ends = crosses(task, program)
    if ends is not None:
        return f"{HOPS}.{number_of(ends[0])}.{number_of(ends[1])}"
    source, target = (program.tensor_named[entry.tensors[0]].device for entry in (task.reads[0], task.writes[0]))
    if source == target:
        return ""
    direction = UPLOADS if source == CPU else DOWNLOADS
    return direction if device == first_device(program) else f"{direction}.{number_of(device)}"


def unused(name: str, taken: Collection[str]) -> str:
    """The name, or one like it that is not taken."""
    while name in taken:
        name += "_"
    return name
