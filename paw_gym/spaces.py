"""The space of Unicode strings, and its texts in the shared memory of ``gymnasium.vector.AsyncVectorEnv``.

Gymnasium's functions for ``Text`` write codes of a fixed character set, padded to the longest text,
and read them once, when the vector environment is made. Those here write any text as UTF-8 after its
length. What is read is a view: copying it, as the vector environment does after every step, gives the
present texts. Pages of shared memory that were never written to take no memory.
"""

from __future__ import annotations

import os
import string
import struct
import weakref
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from gymnasium.spaces import Text
from gymnasium.vector.utils import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

MAX_LENGTH = 2**24
"""characters; far beyond any prompt, so that the environment, not a space, rejects a long answer"""

_SAMPLE_CHARSET = string.ascii_letters + string.digits + string.punctuation + " \n" + "äßéñ你好🙂"
_SAMPLE_LENGTH = 32


class UnicodeText(Text):
    """Every string of at most ``max_length`` characters, the empty one included.

    Gymnasium's ``Text`` has a fixed character set (its default rejects a space). This one accepts
    any character; ``sample`` gives short strings from a small set that mixes ASCII and non-ASCII.
    """

    def __init__(self, max_length: int = MAX_LENGTH, *, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=_SAMPLE_CHARSET, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(1, min(self.max_length, _SAMPLE_LENGTH) + 1))
        return "".join(self.np_random.choice(list(_SAMPLE_CHARSET), size=length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


_LENGTH = struct.Struct("<q")
_MOST_BYTES = 4
"""most bytes of a character in UTF-8"""


class SharedTexts(Sequence[str]):
    """The present texts of all environments, in shared memory; a deep copy is a tuple of them."""

    def __init__(self, space: UnicodeText, count: int) -> None:
        self._count = count
        self.slot = _LENGTH.size + _MOST_BYTES * space.max_length
        self.block = SharedMemory(create=True, size=count * self.slot)
        weakref.finalize(self, _release, self.block, os.getpid())

    def write(self, index: int, text: str) -> None:
        """Puts an environment's text in its place."""
        data = text.encode("utf-8", "surrogatepass")
        buffer: Any = self.block.buf
        _LENGTH.pack_into(buffer, index * self.slot, len(data))
        begin = index * self.slot + _LENGTH.size
        buffer[begin : begin + len(data)] = data

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Any:
        chosen = range(self._count)[index]
        if isinstance(chosen, range):
            return tuple(self[i] for i in chosen)
        buffer: Any = self.block.buf
        (length,) = _LENGTH.unpack_from(buffer, chosen * self.slot)
        begin = chosen * self.slot + _LENGTH.size
        return bytes(buffer[begin : begin + length]).decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: Any) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return repr(tuple(self))


def _release(block: SharedMemory, process: int) -> None:
    block.close()
    if os.getpid() == process:  # the processes of the environments only borrow it
        block.unlink()


@create_shared_memory.register(UnicodeText)
def _create(space: UnicodeText, n: int = 1, ctx: Any = None) -> SharedTexts:
    return SharedTexts(space, n)


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: SharedTexts, n: int = 1) -> SharedTexts:
    return shared_memory


@write_to_shared_memory.register(UnicodeText)
def _write(space: UnicodeText, index: int, values: str, shared_memory: SharedTexts) -> None:
    shared_memory.write(index, values)
