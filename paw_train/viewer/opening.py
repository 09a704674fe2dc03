"""A free port, and a browser tab once the server answers."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser


def free_port(host: str) -> int:
    """A port that nothing listens on at the moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def require_free(host: str, port: int) -> None:
    """Sees to it that the server will be able to listen.

    Raises:
        ValueError: something listens on the port already, or this machine lacks the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # as the server does: an address that is only waiting for old connections to end is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(
                    f"Port {port} of {host} is in use, perhaps by another `paw view`: give another "
                    "one as --port, or --port 0 for any that is free."
                ) from None
            raise ValueError(f"Cannot listen on port {port} of {host}: {error.strerror}.") from None


def open_when_ready(address: str) -> None:
    """Opens the page as soon as it is there; does nothing on a machine without a screen."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        return

    def wait() -> None:
        for _ in range(100):
            try:
                with urllib.request.urlopen(f"{address}health", timeout=2):
                    break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        webbrowser.open(address)

    threading.Thread(target=wait, daemon=True).start()
