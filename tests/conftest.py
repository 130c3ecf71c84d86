"""What all tests share: hypothesis sets no deadline, since a test never asserts an elapsed time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("streamgraph", deadline=None)
settings.load_profile("streamgraph")
