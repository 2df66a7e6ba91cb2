"""The memory file with the arrays of the dataset, which all workers share.

Main writes the bytes of NumPy arrays, tensors and other objects with large buffers into a memory file. Each worker
maps that file, and its arrays are views of the mapping. A page that a worker writes to becomes the worker's own, so
neither main nor another worker sees the change.

Alternative considered: arrays in the pickle of the dataset. Each worker would have a copy, and a dataset of 10 GB would
need 80 GB with 8 workers.
"""

import fcntl
import mmap
import os
import pickle
from typing import NamedTuple

from .._memory_file import MemoryFile, permitted

#: Smaller arrays stay in the pickle.
_MIN_BYTES = 4096
#: The content of the file does not change any more.
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
#: Each array begins at a multiple of this number of bytes, the alignment that SIMD instructions need.
_ALIGNMENT = 64


class ArrayRange(NamedTuple):
    """The part of the file that has an array, in bytes."""

    offset: int
    size: int
    is_read_only: bool


class ArrayFile(MemoryFile):
    """The memory file in main."""

    def __init__(self) -> None:
        super().__init__("loader-arrays")
        self._size = 0
        self.ranges: list[ArrayRange] = []
        #: Mappings of main whose files workers map. The kernel gives the inode of a file to another file only after no
        #: process maps the first.
        self.mappings: list[mmap.mmap] = []

    def add(self, buffer: pickle.PickleBuffer) -> bool:
        """Writes the bytes of an array into the file, when a pickler calls it. Returns True for a small array, whose
        bytes stay in the pickle."""
        with buffer.raw() as content:
            if content.nbytes < _MIN_BYTES:
                return True
            offset = -(-self._size // _ALIGNMENT) * _ALIGNMENT
            self._write(content, offset)
            self._size = offset + content.nbytes
            self.ranges.append(ArrayRange(offset, content.nbytes, content.readonly))
            return False

    def clear(self) -> None:
        """Removes all arrays."""
        os.truncate(self.fileno(), 0)
        self._size, self.ranges, self.mappings = 0, [], []

    def seal(self) -> None:
        """Makes every later change of the file an error."""
        permitted("fcntl(F_ADD_SEALS)", fcntl.fcntl, self.fileno(), fcntl.F_ADD_SEALS, _SEALS)


def open_arrays(file: int, ranges: list[ArrayRange]) -> list[memoryview]:
    """Returns the arrays in the file of main whose descriptor is ``file``, in a worker."""
    if not ranges:
        return []
    if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(file).st_size < sum(ranges[-1][:2]):
        raise RuntimeError("the file of main's arrays is not sealed or too short; this is a defect of the loader")
    content = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_COPY))
    arrays = [content[offset : offset + size] for offset, size, _ in ranges]
    return [array.toreadonly() if range.is_read_only else array for array, range in zip(arrays, ranges)]
