"""What all tests share: hypothesis sets no deadline, since a test never asserts an elapsed time; interrupts arrive; and copies
can go to a fake device."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("streamgraph", deadline=None)
settings.load_profile("streamgraph")

# A shell starts what it runs in the background with SIGINT ignored; Python then raises no KeyboardInterrupt, nor does what it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The built-in copy goes to the last fake device of `standing_in`, while there is one."""
    from streamgraph.executors import launch
    from tests.fake_device import standing_in

    plain, plain_call = launch.run_copy, launch.copy_call
    monkeypatch.setattr(launch, "run_copy", lambda *arguments: (standing_in[-1].run_copy if standing_in else plain)(*arguments))
    monkeypatch.setattr(launch, "copy_call", lambda *arguments: (standing_in[-1].copy_call if standing_in else plain_call)(*arguments))
    standing_in.clear()
    yield
    standing_in.clear()
