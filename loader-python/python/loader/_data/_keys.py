"""The keys of samples that are not plain integers, such as strings, tuples and NumPy's integers. Main keeps them, and
workers read them.

A plain integer from 0 is its own number in the engine's tasks. For other keys, main writes a block, which is a pickle
of the keys of a batch, into a memory file, and the tasks carry numbers that contain the offset of the block. A worker
reads the keys in the file, even when it loads a batch again. When the program has got the batch, no worker needs its
keys, and main frees them.
"""

import contextlib
import mmap
import os
import pickle
from collections import deque
from typing import Any

from .._memory_file import MemoryFile
from .._pickling import _batch_pickle, _by_value

#: The lowest number that stands for a key in the file. The bits 16 to 61 are the offset of the block in bytes, and the
#: bits 0 to 15 the position in the block. A batch has the same numbers in each run, so that a state fits the loader
#: that resumes from it.
FIRST_NUMBER = 1 << 62
_BLOCK_KEYS = 1 << 16
_OFFSET_SHIFT = 16
#: Main frees memory of the file in parts of this size in bytes.
_FREED_BYTES = 1 << 20


class KeyFile:
    """The keys of the batches that the program has not got, in main, in memory files.

    Epochs use two files in turn. When main begins an epoch, workers may still load batches of the epoch before, if the
    program has left that epoch early. Workers have ended all tasks of earlier epochs, because main waited for that when
    it began the epoch before.
    """

    def __init__(self) -> None:
        #: True if workers import the user's script. Classes of the script are then the imported ones in keys, as in the
        #: dataset.
        self.needs_main = False
        #: The classes and functions that workers have by value.
        self.sent = _by_value.SentObjects()
        #: Workers get them in this order.
        self.files = (_EpochFile(), _EpochFile())
        self._current = self.files[0]

    def begin(self, epoch: int) -> None:
        """Begins an epoch without keys."""
        self._current = self.files[epoch % len(self.files)]
        self._current.clear()

    def add(self, number: int, batch: list[Any]) -> list[int]:
        """Adds the keys of batch ``number``, and returns their numbers."""
        return self._current.add(number, batch, self.needs_main, self.sent)

    def free(self, before: int) -> None:
        """Frees the keys of the batches before number ``before``."""
        self._current.free(before)


class _EpochFile(MemoryFile):
    """The keys of one epoch."""

    def __init__(self) -> None:
        super().__init__("loader-keys")
        self._begin()

    def _begin(self) -> None:
        self._size = self._freed = 0
        #: The number of each batch in the file, and where its keys begin.
        self._batches: deque[tuple[int, int]] = deque()

    def add(self, number: int, batch: list[Any], needs_main: bool, sent: _by_value.SentObjects) -> list[int]:
        self._batches.append((number, self._size))
        numbers: list[int] = []
        for first in range(0, len(batch), _BLOCK_KEYS):
            part = batch[first : first + _BLOCK_KEYS]
            block = _batch_pickle.dumps(part, needs_main, sent)
            block = len(block).to_bytes(8, "little") + block
            start = FIRST_NUMBER | self._size << _OFFSET_SHIFT
            self._write(block, self._size)
            self._size += len(block)
            numbers.extend(range(start, start + len(part)))
        return numbers

    def free(self, before: int) -> None:
        while self._batches and self._batches[0][0] < before:
            self._batches.popleft()
        end = self._batches[0][1] if self._batches else self._size
        end -= end % _FREED_BYTES
        if end > self._freed:
            # A system that cannot free the memory keeps it until the epoch ends.
            with contextlib.suppress(OSError), mmap.mmap(self.fileno(), end - self._freed, offset=self._freed) as memory:
                memory.madvise(mmap.MADV_REMOVE)
            self._freed = end

    def clear(self) -> None:
        if self._size == 0:
            return
        os.truncate(self.fileno(), 0)
        self._begin()


class KeyReader:
    """Reads keys in a worker."""

    def __init__(self, files: list[int]) -> None:
        #: The descriptors of the files, in the order of :attr:`KeyFile.files`.
        self._files = files
        self._epoch = -1
        self._block: tuple[int, list[Any]] = (-1, [])

    def get(self, number: int, epoch: int) -> Any:
        if epoch != self._epoch:
            self._epoch, self._block = epoch, (-1, [])
        offset = number - FIRST_NUMBER >> _OFFSET_SHIFT
        if self._block[0] != offset:
            size = int.from_bytes(self._bytes(8, offset), "little")
            self._block = (offset, pickle.loads(self._bytes(size, offset + 8)))
        return self._block[1][number & (_BLOCK_KEYS - 1)]

    def _bytes(self, size: int, offset: int) -> bytes:
        file = self._files[self._epoch % len(self._files)]
        found = os.pread(file, size, offset)
        while len(found) < size:
            more = os.pread(file, size - len(found), offset + len(found))
            if not more:
                raise RuntimeError("the file of keys is too short: main has begun another epoch")
            found += more
        return found


class KeyList:
    """The keys of the batches that the program has not got, for a loader without workers."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, _epoch: int) -> None:
        """Begins an epoch without keys."""
        self._keys: list[Any] = []
        #: Number of keys that were freed.
        self._freed = 0
        #: The number of each batch in the list, and the number of keys before it.
        self._batches: deque[tuple[int, int]] = deque()

    def add(self, number: int, batch: list[Any]) -> list[int]:
        """Adds the keys of batch ``number``, and returns their numbers."""
        start = self._freed + len(self._keys)
        self._batches.append((number, start))
        self._keys.extend(batch)
        return list(range(FIRST_NUMBER + start, FIRST_NUMBER + start + len(batch)))

    def free(self, before: int) -> None:
        """Frees the keys of the batches before number ``before``."""
        while self._batches and self._batches[0][0] < before:
            self._batches.popleft()
        end = self._batches[0][1] if self._batches else self._freed + len(self._keys)
        del self._keys[: end - self._freed]
        self._freed = end

    def get(self, number: int, _epoch: int) -> Any:
        position = number - FIRST_NUMBER - self._freed
        if position < 0:
            raise IndexError("the key of this number was freed")
        return self._keys[position]
