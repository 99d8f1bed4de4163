"""A headless Chromium on a pipe: the DevTools protocol without a port, a driver or a dependency."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Chromium:
    """One browser with one tab. Messages are JSON, ended by a zero byte, on its descriptors 3 and 4."""

    def __init__(self, width: int = 1280, height: int = 800, scale: float = 1.0, dark: bool = False) -> None:
        assert PROGRAM is not None
        self._profile = tempfile.mkdtemp(prefix="sublet-chromium-")
        self._process, self._write, self._read = _start([PROGRAM, *FLAGS, f"--user-data-dir={self._profile}"])
        self._number = 0
        self._received = b""
        self._session = ""
        self.events: list[dict[str, Any]] = []
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
            self.resize(width, height, scale)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.send("Emulation.setEmulatedMedia", features=[scheme])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come meanwhile are kept in `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message(seconds=60)
            if answer.get("id") != self._number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            result: dict[str, Any] = answer["result"]
            return result

    def _message(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("Chromium does not answer")
            self._received += chunk
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, path: Path) -> None:
        """Open a page of ours and wait until it says that it is ready."""
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait()

    def wait(self) -> None:
        """Until a page of ours says that it is ready."""
        deadline = time.monotonic() + 60
        while not self._is_ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the page is not ready; {self.complaints()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return bool(self.evaluate("!!(window.sublet && window.sublet.ready)"))
        except RuntimeError as error:
            if "navigated" in str(error):  # asked of the page that was there before
                return False
            raise

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors on the console, uncaught exceptions and what the page's own policy refused."""
        self.evaluate("0")
        bad: list[str] = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                bad.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
                bad.append(str(parameters["args"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                bad.append(str(parameters["entry"]))
        return bad

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        self.evaluate("0")
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`kind` is Moved, Pressed, Released or Wheel."""
        self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)
        self.settle()

    def click(self, x: float, y: float) -> None:
        self.mouse("Moved", x, y)
        self.mouse("Pressed", x, y, button="left", clickCount=1)
        self.mouse("Released", x, y, button="left", clickCount=1)

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def settle(self) -> None:
        """Wait for two frames, in which everything asked for has been drawn."""
        self.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(0))))")

    def screenshot(self) -> bytes:
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])


def _start(command: list[str]) -> tuple[int, int, int]:
    """Process id, the end to write to and the end to read from. The child leads its own process group."""
    to_child, write = os.pipe()
    read, from_child = os.pipe()
    # Out of the way of 3 and 4, which the child's ends are copied to.
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_child, from_child)]
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
    process = os.posix_spawn(command[0], command, dict(os.environ), file_actions=actions, setpgroup=0)
    for end in (to_child, from_child, null, *high):
        os.close(end)
    return process, write, read
