"""A browser tab that opens once the server answers."""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser


def open_when_ready(address: str) -> None:
    """Opens the page as soon as it is there; does nothing on a machine without a screen."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        return

    def wait() -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it runs here
        for _ in range(100):
            try:
                with direct.open(f"{address}health", timeout=2):
                    break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        webbrowser.open(address)

    threading.Thread(target=wait, daemon=True).start()
