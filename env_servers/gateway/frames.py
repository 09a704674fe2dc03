"""Frames between the gateway and its workers: a number, a status, and JSON, with the length in front."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEAD = struct.Struct("<QHI")
"""number of the call, status (0 in a question), bytes of the body"""
OK = 200
READY = 0
"""number of the frame by which a worker says that it can work"""


def frame(number: int, status: int, body: bytes) -> bytes:
    """A frame."""
    return _HEAD.pack(number, status, len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Takes more of the stream and gives the frames that are complete: number, status, body."""
        self._buffer += data
        start, held = 0, len(self._buffer)
        while held - start >= _HEAD.size:
            number, status, length = _HEAD.unpack_from(self._buffer, start)
            end = start + _HEAD.size + length
            if end > held:
                break
            yield number, status, bytes(self._buffer[start + _HEAD.size : end])
            start = end
        if start:
            del self._buffer[:start]
