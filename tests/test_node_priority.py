"""Node priority: exactly the kernels that a stream was given inside get it, as a driver tells that is played here."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from streamgraph.executors import node_priority as module
from streamgraph.executors.node_priority import node_priority

STREAM = 77


class Driver:
    """One captured stream: a graph by node, each with what it depends on and whether it is a kernel."""

    def __init__(self) -> None:
        self.graph: dict[int, list[int]] = {}
        self.kernels: set[int] = set()
        self.tails: list[int] = []
        self.priorities: dict[int, int] = {}
        self.status, self.code = module.ACTIVE, 0

    def add(self, node: int, *after: int, kernel: bool = True) -> None:
        """The stream is given a node, which follows its tails, and others."""
        self.graph[node] = [*self.tails, *after]
        self.kernels |= {node} if kernel else set()
        self.tails = [node]

    def cuStreamGetCaptureInfo_v3(self, stream: ctypes.c_void_p, *out: Any) -> int:
        assert stream.value == STREAM
        status, _, _, nodes, _, count = (reference._obj for reference in out)
        status.value, count.value = self.status, len(self.tails)
        self.held = (ctypes.c_void_p * len(self.tails))(*self.tails)
        nodes.contents = ctypes.c_void_p.from_address(ctypes.addressof(self.held)) if self.tails else ctypes.c_void_p()
        return self.code

    def cuGraphNodeGetDependencies_v2(self, node: ctypes.c_void_p, nodes: Any, edges: Any, count: Any) -> int:
        before = self.graph[node.value or 0]
        assert nodes is None or len(nodes) == len(edges) == count._obj.value == len(before)
        count._obj.value = len(before)
        for place, earlier in enumerate(before if nodes is not None else ()):
            nodes[place] = earlier
        return 0

    def cuGraphNodeGetType(self, node: ctypes.c_void_p, kind: Any) -> int:
        kind._obj.value = module.KERNEL if node.value in self.kernels else 2
        return 0

    def cuGraphKernelNodeSetAttribute(self, node: ctypes.c_void_p, attribute: ctypes.c_int, value: Any) -> int:
        assert attribute.value == module.PRIORITY
        assert ctypes.sizeof(value._obj) == 64
        assert node.value in self.kernels
        self.priorities[node.value] = value._obj.priority
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(module, "driver", lambda: made)
    return made


def test_the_kernels_of_a_launch_get_it_and_none_before_or_after_does(driver: Driver) -> None:
    driver.add(1)
    driver.graph[2] = []  # of another lane, and waited for
    driver.tails.append(2)
    with node_priority(STREAM, -1):
        driver.add(3)
        driver.add(4, kernel=False)
        driver.add(5)
    driver.add(6)
    assert driver.priorities == {3: -1, 5: -1}


def test_a_launch_that_begins_a_graph_or_forks_inside_or_does_nothing(driver: Driver) -> None:
    with node_priority(STREAM, -5):
        driver.add(1)
        driver.graph |= {2: [1], 3: [1]}
        driver.kernels |= {2, 3}
        driver.add(4, 2, 3)
    assert driver.priorities == dict.fromkeys((1, 2, 3, 4), -5)
    with node_priority(STREAM, -1):
        pass
    assert driver.priorities == dict.fromkeys((1, 2, 3, 4), -5)


def test_where_nothing_is_captured_or_the_driver_knows_nothing_the_launch_goes_on(driver: Driver) -> None:
    for driver.status, driver.code in ((0, 0), (module.ACTIVE, 901)):
        with node_priority(STREAM, -1):
            driver.add(1)
    assert driver.priorities == {}


def test_without_a_driver_the_launch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "driver", lambda: None)
    ran = []
    with node_priority(STREAM, -1):
        ran.append(1)
    assert ran == [1]


def test_an_error_inside_is_the_callers(driver: Driver) -> None:
    with pytest.raises(ZeroDivisionError), node_priority(STREAM, -1):
        driver.add(1 // 0)
    assert driver.priorities == {}
