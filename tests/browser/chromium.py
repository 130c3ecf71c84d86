"""A headless Chromium, driven through its debugging pipe: no package, no port, and every request and console error is kept.

The protocol is https://chromedevtools.github.io/devtools-protocol/; messages are JSON, ended by a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "End": 35}


def find() -> str | None:
    """The path of a Chromium, or None."""
    return os.environ.get("STREAMGRAPH_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page. `requests` are the addresses that it asked for, `errors` what went wrong in it: exceptions, console errors, refusals."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session
        self.requests: list[str] = []
        self.errors: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def open(self, path: Path, seconds: float = 60) -> None:
        """Open a file, and wait until the page says that it is ready or has failed."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement?.dataset.ready || document.documentElement?.dataset.error", seconds)

    def until(self, condition: str, seconds: float = 20) -> Any:
        """What the expression gives as soon as that is true."""
        limit = time.monotonic() + seconds
        while not (value := self.js(condition)):
            assert time.monotonic() < limit, f"not true after {seconds} s: {condition}; {self.errors}"
            time.sleep(0.02)
        return value

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description") or answer["exceptionDetails"]["text"])
        return answer["result"].get("value")

    def data(self, key: str) -> str | None:
        """One of the `data-` attributes of <html>."""
        value: str | None = self.js(f"document.documentElement.dataset[{json.dumps(key)}] ?? null")
        return value

    def click(self, x: float, y: float, kind: str = "click") -> None:
        """A click, or only a move, of the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if kind == "click":
            self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
            self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def click_on(self, selector: str) -> None:
        """A click on the middle of an element."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{found}.scrollIntoView({{block: 'center'}})")
        self.click(*self.js(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({found}.getBoundingClientRect())"))

    def press(self, *keys: str) -> None:
        """Keys, one after another; text of more than one character is a key's name."""
        for key in keys:
            code = {"key": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper()))}
            text = {} if key in KEYS and key != "Enter" else {"text": "\r" if key == "Enter" else key}
            self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def media(self, scheme: str = "light", motion: str = "no-preference", kind: str = "") -> None:
        """What the reader prefers: light or dark, motion or less of it; `kind` may be "print"."""
        features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path) -> None:
        """A picture of what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser:
    """A running Chromium."""

    def __init__(self, program: str, folder: Path) -> None:
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        arguments = [
            program, "--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-background-networking",
            "--remote-debugging-pipe", f"--user-data-dir={folder}", "--hide-scrollbars", "--no-sandbox", "about:blank",
        ]  # fmt: skip

        def place() -> None:  # Chromium reads from 3 and writes to 4; first out of the way, since one of ours may be one of these
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)]
            for number, end in enumerate(ends, 3):
                os.dup2(end, number)

        self.process = subprocess.Popen(
            arguments, close_fds=False, preexec_fn=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        self.reading, self.writing = from_read, to_write
        self.pages: dict[str, Page] = {}
        self.buffer = b""
        self.number = 0

    def page(self) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility", "DOM"):
            page.call(f"{domain}.enable")
        page.size(1400, 950)
        page.media()
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._heard(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.reading], [], [], 100)
            data = os.read(self.reading, 1 << 20) if ready else b""
            assert data, "Chromium is silent"
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _heard(self, event: dict[str, Any]) -> None:
        page, params = self.pages.get(event.get("sessionId", "")), event.get("params", {})
        if page is None:
            return
        match event.get("method"):
            case "Network.requestWillBeSent":
                page.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                page.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                page.errors.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                page.errors.append(params["entry"]["text"])
            case _:
                pass

    def close(self) -> None:
        try:
            self.call("Browser.close")
        finally:
            os.close(self.writing)
            os.close(self.reading)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def running(folder: Path) -> Iterator[Browser]:
    """A Chromium that is closed in the end."""
    program = find()
    assert program is not None
    browser = Browser(program, folder)
    try:
        yield browser
    finally:
        browser.close()
