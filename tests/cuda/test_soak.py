"""Nothing grows: a shorter version of benchmarks/soak.py."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cuda

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def soak() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("soak", FOLDER / "soak.py")
        assert spec is not None
        assert spec.loader is not None
        made = sys.modules["soak"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(FOLDER))
    return made


@pytest.mark.parametrize(
    ("what", "count"),
    [("eager runs", 4_000), ("replays", 40_000), ("runs in parts", 4_000), ("eager iterations", 4_000), ("iterations of graphs", 10_000)],
)
def test_nothing_grows(soak: Any, what: str, count: int) -> None:
    make = {
        "eager runs": soak.calls(soak.chain(), "cuda", "eager", 4096),
        "replays": soak.calls(soak.chain(), "cuda", "graph", 4096),
        "runs in parts": soak.calls(soak.hosted(), "cuda", "graph", 64),
        "eager iterations": soak.loop("cuda", "eager"),
        "iterations of graphs": soak.loop("cuda", "graph"),
    }[what]
    with ExitStack() as stack:
        run = make(stack)
        run(1_000)
        before = soak.held(True)
        run(count)
        after = soak.held(True)
        del run
    assert after.allocated == before.allocated
    assert after.reserved == before.reserved
    assert after.objects <= before.objects + 50
    assert after.process <= before.process + (4 << 20)
