"""What a run returns: a mapping from output names to tensors, with the schedule that made them beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from streamgraph.errors import Problem, RunnerError, quoted
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import torch

    from streamgraph.measured import MeasuredTimeline
    from streamgraph.simulate import Timeline


class Result(Mapping[str, "torch.Tensor"]):
    """The outputs of one run, by name. They belong to the caller: no later run changes them.

    `schedule` is what was run. `made_up` names the inputs that nothing was bound to and that `init` filled (only `run` does that).
    `measured` is the measured timeline, of `run(..., profile=True)`; else None.
    """

    measured: MeasuredTimeline | None = None

    def __init__(
        self,
        outputs: Mapping[str, torch.Tensor],
        schedule: Schedule,
        *,
        made_up: tuple[str, ...] = (),
        predict: Callable[[], Timeline],
        inputs_free: Callable[[], None] | None = None,
    ) -> None:
        self.schedule = schedule
        self.made_up = made_up
        self._outputs = dict(outputs)
        self._predict = predict
        self._inputs_free = inputs_free
        self._timeline: Timeline | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        """The output of that name.

        Raises:
            KeyError: there is none; the message lists those there are.
        """
        try:
            return self._outputs[name]
        except KeyError:
            known = ", ".join(self._outputs) or "none: list some under `outputs`"
            raise KeyError(f"'{quoted(name)}' is not an output; the outputs are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        return f"<Result of '{self.schedule.program.name}': {', '.join(self._outputs) or 'no outputs'}>"

    @property
    def timeline(self) -> Timeline:
        """The predicted timeline of the schedule, with the costs and the machine that it was planned for. Simulated, not measured."""
        if self._timeline is None:
            self._timeline = self._predict()
        return self._timeline

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the HTML report of what was run, with its predicted timeline, and the measured one if there is one. Returns the path.

        Any suffix of `Schedule.draw` will do.
        """
        from streamgraph.render import draw, python_of

        return draw(self.schedule, path, self.timeline, python=python_of(self.schedule), measured=self.measured)

    def trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the Chrome trace, for Perfetto: the predicted run, and the measured one as a second process. Returns the path."""
        from pathlib import Path

        from streamgraph.render import draw_trace

        target = Path(path)
        target.write_text(draw_trace(self.schedule, self.timeline, self.measured), encoding="utf-8", newline="\n")
        return target

    def inputs_free(self) -> None:
        """Block the host until the host tensors bound to this run may be written again: its copies from them are done.

        Raises:
            RunnerError: SG608 for a simulated run, which read nothing.
        """
        if self._inputs_free is None:
            raise RunnerError(Problem("SG608", "a simulated run reads no inputs", None, "run on a device: device='cpu' or 'cuda'"))
        self._inputs_free()
