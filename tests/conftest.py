"""What all tests share: hypothesis sets no deadline, since a test never asserts an elapsed time; and interrupts arrive."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("streamgraph", deadline=None)
settings.load_profile("streamgraph")

# A shell starts what it runs in the background with SIGINT ignored; Python then raises no KeyboardInterrupt, nor does what it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
