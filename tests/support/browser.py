"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
_WAIT_SECONDS = 60.0


class Page:
    """One page. Errors of its scripts, and refused or failed loads, end up in `problems`."""

    def __init__(self, connection: ClientConnection) -> None:
        self.problems: list[str] = []
        self._connection = connection
        self._numbers = itertools.count(1)
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(_WAIT_SECONDS))
            if message.get("id") == number:
                return message["result"]
            self._take_event(message)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        ends_at = time.monotonic() + _WAIT_SECONDS
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < ends_at, f"{condition} did not come true: {self.problems}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press and release a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def _take_event(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"]["exception"]["description"])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])


@contextmanager
def open_page() -> Iterator[Page]:
    """Start a Chromium with a profile of its own, and end it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            # Pings would draw from `random` in a thread, for which Hypothesis fails other tests.
            address = _page_address(Path(profile))
            with connect(address, max_size=None, ping_interval=None) as connection:
                yield Page(connection)
        finally:
            process.terminate()
            process.wait(_WAIT_SECONDS)


def _page_address(profile: Path) -> str:
    """Return the address of the first page, once the browser has written its port."""
    import httpx2

    ends_at = time.monotonic() + _WAIT_SECONDS
    file = profile / "DevToolsActivePort"
    while time.monotonic() < ends_at:
        if file.exists() and (lines := file.read_text().splitlines()):
            pages = httpx2.get(f"http://127.0.0.1:{lines[0]}/json/list", trust_env=False).json()
            for page in pages:
                if page["type"] == "page":
                    return str(page["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError("Chromium opened no page in time")
