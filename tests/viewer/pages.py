"""Headless Chromium on the viewer: the driver of the WebShop's browser tests, with keys and themes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_spec = importlib.util.spec_from_file_location(
    "browser_driver", Path(__file__).parents[1] / "env_servers" / "conftest.py"
)
assert _spec is not None and _spec.loader is not None
driver: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(driver)
CHROMIUM = driver.CHROMIUM
_CODES = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "PageDown": 34, "End": 35}


class Pages(driver.Browser):
    """A tab of the viewer."""

    def key(self, key: str) -> None:
        """Presses and lets go of a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "windowsVirtualKeyCode": _CODES.get(key, ord(key[0].upper()))}
        self._call("Input.dispatchKeyEvent", type="keyDown", **text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def theme(self, name: str) -> None:
        """What the system prefers: ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drags across an element, from and to shares of its width."""
        self.wait_for(f"document.querySelector({selector!r}) !== null")
        x, y, w, h = self.run(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect(); "
            "return [b.x, b.y, b.width, b.height] })()"
        )
        steps = [start + (end - start) * i / 5 for i in range(6)]
        events = [("mouseMoved", start), ("mousePressed", start)]
        events += [("mouseMoved", at) for at in steps] + [("mouseReleased", end)]
        for kind, at in events:
            self._call(
                "Input.dispatchMouseEvent", type=kind, x=x + at * w, y=y + h / 2, button="left",
                buttons=0 if kind == "mouseReleased" else 1, clickCount=1,
            )  # fmt: skip
