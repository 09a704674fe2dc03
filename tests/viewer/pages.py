"""Headless Chromium on the viewer: the driver of the WebShop's browser tests, with themes and the wheel."""

from __future__ import annotations

from browser import Browser

_WATCH = """
window.problems = [];
addEventListener("error", (e) => problems.push(`${e.message} ${e.filename}:${e.lineno}`));
addEventListener("unhandledrejection", (e) => problems.push(String(e.reason && e.reason.stack)));
addEventListener("securitypolicyviolation", (e) => problems.push(`refused: ${e.violatedDirective}`));
"""


class Pages(Browser):
    def watch(self) -> None:
        """From now on ``problems()`` knows of errors and of content that the policy refused."""
        self._call("Page.enable")
        self._call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)

    def problems(self) -> list[str]:
        return list(self.run("window.problems"))

    def theme(self, name: str) -> None:
        """What the system prefers: ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def is_there(self, selector: str) -> None:
        self.wait_for(f"document.querySelector({selector!r}) !== null")

    def text(self, selector: str) -> str:
        self.is_there(selector)
        return str(self.run(f"document.querySelector({selector!r}).textContent"))

    def texts(self, selector: str) -> list[str]:
        found = f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)"
        return list(self.run(found))

    def address(self) -> str:
        """The part of the address behind the ``#``."""
        return str(self.run("location.hash"))

    def wheel(self, selector: str, pixels: int) -> None:
        x, y, *_ = self._box(selector)
        self._call(
            "Input.dispatchMouseEvent", type="mouseWheel", x=x + 20, y=y + 20, deltaX=0, deltaY=pixels
        )  # fmt: skip

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drags across an element, from and to shares of its width."""
        x, y, w, h = self._box(selector)
        steps = [start + (end - start) * i / 5 for i in range(6)]
        events = [("mouseMoved", start), ("mousePressed", start)]
        events += [("mouseMoved", at) for at in steps] + [("mouseReleased", end)]
        for kind, at in events:
            self._call(
                "Input.dispatchMouseEvent", type=kind, x=x + at * w, y=y + h / 2, button="left",
                buttons=0 if kind == "mouseReleased" else 1, clickCount=1,
            )  # fmt: skip

    def _box(self, selector: str) -> tuple[float, float, float, float]:
        self.is_there(selector)
        x, y, w, h = self.run(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect(); "
            "return [b.x, b.y, b.width, b.height] })()"
        )
        return x, y, w, h
