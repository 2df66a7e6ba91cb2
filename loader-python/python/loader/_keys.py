"""Keys of samples that are not plain integers, such as strings, tuples and NumPy's integers.

A plain integer from 0 is its own number in the engine's tasks. For other keys main writes a pickle of all keys of a batch into a file in memory that the
workers read, and sends numbers that contain its offset. A worker that loads a batch again reads its keys there.
"""

import os
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from ._order import Order

#: The lowest number that stands for a key in the file. In the bits below, 54 to 61 are the number of the file, 16 to 53 the offset
#: of the block in bytes, and 0 to 15 the position in the block.
FIRST = 1 << 62
_FILES, _PER_RECORD = 1 << 8, 1 << 16
_FILE_SHIFT, _OFFSET_SHIFT = 54, 16


class KeyFile:
    """Main's side: a file in memory for the keys of an epoch."""

    def __init__(self) -> None:
        self._file = os.memfd_create("loader-keys")
        self._number = 0
        self._size = 0

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def add(self, batch: list[Any]) -> list[int]:
        numbers: list[int] = []
        for first in range(0, len(batch), _PER_RECORD):
            part = batch[first : first + _PER_RECORD]
            record = pickle.dumps(part, protocol=5)
            record = len(record).to_bytes(8, "little") + record
            start = FIRST | self._number << _FILE_SHIFT | self._size << _OFFSET_SHIFT
            written = 0
            while written < len(record):
                written += os.pwrite(self._file, record[written:], self._size + written)
            self._size += len(record)
            numbers.extend(range(start, start + len(part)))
        return numbers

    def clear(self) -> None:
        """Begins an epoch with an empty file under the same path. Workers that read the one before still have it."""
        if self._size == 0:
            return
        fresh = os.memfd_create("loader-keys")
        os.dup2(fresh, self._file, inheritable=False)
        os.close(fresh)
        self._number = (self._number + 1) % _FILES
        self._size = 0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The module `os` may be gone when the interpreter ends.
        close(self._file)


class KeyReader:
    """A worker's side: opens the file when a key is asked for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._number = -1
        self._record: tuple[int, list[Any]] = (-1, [])

    def __getitem__(self, number: int) -> Any:
        position = number & (_PER_RECORD - 1)
        place = number >> _OFFSET_SHIFT
        if self._record[0] != place:
            self._record = (place, self._read(number))
        return self._record[1][position]

    def _read(self, number: int) -> list[Any]:
        file = number >> _FILE_SHIFT & (_FILES - 1)
        if file != self._number:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._number = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC), file
        offset = number >> _OFFSET_SHIFT & ((1 << (_FILE_SHIFT - _OFFSET_SHIFT)) - 1)
        size = int.from_bytes(self._bytes(8, offset), "little")
        return pickle.loads(self._bytes(size, offset + 8))

    def _bytes(self, size: int, offset: int) -> bytes:
        found = os.pread(self._file, size, offset)
        while len(found) < size:
            more = os.pread(self._file, size - len(found), offset + len(found))
            if not more:
                raise RuntimeError("the file of keys is too short: main has begun another epoch")
            found += more
        return found


class KeyList:
    """The keys of an epoch without workers."""

    def __init__(self) -> None:
        self._keys: list[Any] = []

    def add(self, batch: list[Any]) -> list[int]:
        start = FIRST + len(self._keys)
        self._keys.extend(batch)
        return list(range(start, start + len(batch)))

    def clear(self) -> None:
        self._keys.clear()

    def __getitem__(self, number: int) -> Any:
        return self._keys[number - FIRST]


class KeyOrder(Order):
    """The batches of a dataset of Python objects."""

    def __init__(self, sampler: Iterable[Any], auto_collation: bool, keys: KeyFile | KeyList) -> None:
        super().__init__(sampler, auto_collation)
        self._keys = keys

    def _begin_epoch(self) -> None:
        self._keys.clear()

    def _numbers(self, batch: Iterable[Any]) -> list[int]:
        batch = batch if type(batch) is list else list(batch)
        for key in batch:
            if type(key) is not int or not 0 <= key < FIRST:
                return self._keys.add(batch)
        return batch
