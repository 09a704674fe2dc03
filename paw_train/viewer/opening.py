"""A browser tab that opens once the server answers."""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser
from html import escape

from paw_gym.internals.cache import kept, kept_path

_READ_SECONDS = 60.0
"""for the browser to start, and to read the page"""


def open_when_ready(address: str, link: str) -> None:
    """Opens a server's page as soon as it is there; does nothing on a machine without a screen.

    Args:
        address: of the server.
        link: what to open; other users can see a program's arguments, so it is not one of them.
    """
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        return

    def wait() -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it runs here
        for _ in range(100):
            try:
                with direct.open(f"{address}/health", timeout=2):
                    break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        page = kept_path(address, "html")
        refresh = f'<meta http-equiv="refresh" content="0; url={escape(link)}">'
        with kept(page, f"<!doctype html>{refresh}"):
            webbrowser.open(page.as_uri())
            time.sleep(_READ_SECONDS)

    threading.Thread(target=wait, daemon=True).start()
