"""Headless Chromium for tests of pages."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

SECONDS = 120.0
"""that a page has for what it does at once: the limit only ends a test that has failed"""
CHROMIUM = next((path for n in ("chromium", "google-chrome") if (path := shutil.which(n))), None)
PAINTED = "performance.getEntriesByName('first-contentful-paint').length > 0"
"""until then the browser drops what is typed and clicked"""

_CODES = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "PageDown": 34, "End": 35}


class Browser:
    """Driven over a pipe by the DevTools protocol: real keys and mouse clicks."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._log = folder.with_name(folder.name + ".log")

        def connect() -> None:
            # by unused numbers, because either end may itself be 3 or 4
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 5) for end in (to_browser, from_browser)]
            os.dup2(ends[0], 3), os.dup2(ends[1], 4)

        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    CHROMIUM,
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--remote-debugging-pipe",
                    f"--user-data-dir={folder}",
                ],
                preexec_fn=connect,
                pass_fds=(3, 4),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        os.close(to_browser), os.close(from_browser)
        self._buffer, self._number = b"", 0
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session: str | None = None
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.size(1200, 900)

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self.wait_for(f"innerWidth === {width} && innerHeight === {height}")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                piece = os.read(self._read, 1 << 16)
                if not piece:
                    raise RuntimeError(f"the browser ended: {self._log.read_text()[-2000:]}")
                self._buffer += piece
            line, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(RuntimeError):  # the page is changing
                if self.run("document.readyState") == "complete" and (value := self.run(script)):
                    return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; at {self.run('location.href')}")

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.wait_for(f"location.href.startsWith({json.dumps(url)})")

    def click(self, selector: str) -> None:
        """Clicks in the middle of an element; again if a redraw took it away meanwhile."""
        name = json.dumps(selector)
        self.wait_for(f"{PAINTED} && document.querySelector({name}) !== null")
        self.run(
            "addEventListener('click', e => { window.hit ||= e.isTrusted && "
            f"e.target.closest({name}) !== null }}, {{capture: true}})"
        )
        for _ in range(20):
            x, y = self.wait_for(
                f"(() => {{ const e = document.querySelector({name}); window.hit = false; "
                "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
                "return [b.x + b.width / 2, b.y + b.height / 2] })()"
            )
            for kind, count in (("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 1)):
                self._call(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=count,
                    button="left" if count else "none",
                )  # fmt: skip
            with contextlib.suppress(RuntimeError):  # the click led to another page
                if self.run("window.hit") is False:
                    continue
            return
        raise AssertionError(f"no click reaches {selector}")

    def type(self, text: str) -> None:
        self.wait_for(PAINTED)
        for character in text:
            self._call("Input.dispatchKeyEvent", type="char", text=character)

    def key(self, key: str, times: int = 1) -> None:
        self.wait_for(PAINTED)
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "windowsVirtualKeyCode": _CODES.get(key, ord(key[0].upper()))}
        for _ in range(times):
            self._call("Input.dispatchKeyEvent", type="keyDown", **text, **common)
            self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def back(self) -> None:
        self.run("history.back()")

    def reload(self) -> None:
        self.run("window.before_reload = true")
        self._call("Page.reload")
        self.wait_for("!window.before_reload")

    def close(self) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            self._session = None
            self._call("Browser.close")
        self.process.kill()
        self.process.wait()
        os.close(self._read), os.close(self._write)
