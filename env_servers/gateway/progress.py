"""A few bytes that a worker and the gateway share: which call is being executed, since when.

From it the gateway knows which session to blame when a worker dies or hangs; the others go on.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time

_FORM = struct.Struct("<Qd")


class Progress:
    """The shared bytes.

    Args:
        descriptor: of the file that holds them; it stays open and is the caller's.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _FORM.size)

    def begin(self, number: int) -> None:
        """Notes (in the worker) that a call begins; 0: nothing is being done."""
        _FORM.pack_into(self._memory, 0, number, time.monotonic())

    def now(self) -> tuple[int, float]:
        """The call being executed (0: none), and for how many seconds."""
        number, since = _FORM.unpack_from(self._memory, 0)
        return number, time.monotonic() - since

    def close(self) -> None:
        """Gives the memory back."""
        self._memory.close()


def new_descriptor() -> int:
    """An open file without a name, of the right size."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(_FORM.size))
        file.flush()
        return os.dup(file.fileno())
