"""The epoch log: a memory file in which the workers of an iterable dataset write what main needs of each epoch, beside
the batches.

Main makes the file, and workers append entries of two kinds:

- The states of the random number generators with which a worker has begun its shard of a dataset that has no
  ``state_dict``. A worker that continues the shard, after a death or a resume, begins with the same states, so it reads
  the same samples again.
- The state of the dataset in a persistent worker at the end of an epoch. The worker writes it before it reports the end
  to main. A worker that takes its place in a later epoch begins with this state.

Workers load ahead of the program, so each entry has the number of its epoch.

Alternative considered: the generators in the position that a worker sends with each batch. They have 13 KB, and take 4
us per batch.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterator

from .._memory_file import MemoryFile

#: The kinds of entries.
GENERATORS, LAST_STATE = range(2)

#: Each entry begins with it. A worker that is killed may leave a part of an entry. The reader then looks for the next
#: mark.
_MARK = b"loader's entry: "

#: Mark, kind, worker, epoch, and size and checksum of the content that follows.
_HEADER = struct.Struct(f"<{len(_MARK)}sBQQQL")


class EpochLog(MemoryFile):
    """The epoch log in main."""

    def __init__(self) -> None:
        super().__init__("loader-epoch-log")
        # Workers have the same open file, so they append too.
        fcntl.fcntl(self.fileno(), fcntl.F_SETFL, os.O_APPEND)
        #: Main has read the bytes before this one, and has freed those before the other one.
        self._read = self._freed = 0
        self._last_states: dict[int, dict[int, bytes]] = {}
        self._generators: dict[int, dict[int, bytes]] = {}

    def generators(self, epoch: int) -> dict[int, bytes]:
        """Returns what each worker that has begun epoch number ``epoch`` has written of its generators."""
        self._receive()
        return self._generators.get(epoch, {})

    def last_states(self, epoch: int) -> dict[int, bytes]:
        """Returns the last state of each worker that is from an epoch before number ``epoch``."""
        return {worker: state for worker, (_, state) in self._last(epoch).items()}

    def _last(self, epoch: int) -> dict[int, tuple[int, bytes]]:
        """As :meth:`last_states`, with the number of the epoch of each state."""
        self._receive()
        found = {}
        for worker, states in self._last_states.items():
            if earlier := [number for number in states if number < epoch]:
                found[worker] = max(earlier), states[max(earlier)]
        return found

    def begin_epoch(self, epoch: int) -> None:
        """Forgets what only concerns the epochs before number ``epoch``. The last states are written again, and the
        memory of the entries before them is freed. A worker that reads the file meanwhile finds them too."""
        kept = self._last(epoch)
        self._last_states = {worker: {number: state} for worker, (number, state) in kept.items()}
        self._generators = {}
        file, end = self.fileno(), self._read - self._read % mmap.ALLOCATIONGRANULARITY
        for worker, (number, state) in kept.items():
            append(file, LAST_STATE, worker, number, state)
        if end > self._freed:
            # A system that cannot free the memory keeps it until the loader ends.
            with contextlib.suppress(OSError), mmap.mmap(file, end - self._freed, offset=self._freed) as memory:
                memory.madvise(mmap.MADV_REMOVE)
            self._freed = end

    def _receive(self) -> None:
        file = self.fileno()
        content = os.pread(file, os.fstat(file).st_size - self._read, self._read)
        end = 0
        for kind, worker, epoch, entry, end in _entries(content):
            if kind == GENERATORS:
                self._generators.setdefault(epoch, {})[worker] = entry
            else:
                self._last_states.setdefault(worker, {})[epoch] = entry
        self._read += end


def append(file: int, kind: int, worker: int, epoch: int, entry: bytes) -> None:
    """Appends an entry to the log whose descriptor is ``file``, in a worker or in main."""
    # One call, so that no other worker writes in the middle of the entry.
    os.write(file, _HEADER.pack(_MARK, kind, worker, epoch, len(entry), zlib.crc32(entry)) + entry)


def find_generators(file: int, worker: int, epoch: int) -> bytes | None:
    """Called in a worker: returns what a worker with the same number has written of its generators in this epoch."""
    found = (entry for *key, entry, _ in _entries(_content(file)) if key == [GENERATORS, worker, epoch])
    return next(found, None)


def find_last_state(file: int, worker: int, epoch: int) -> bytes | None:
    """Called in a worker: returns the last state that a worker with the same number has written before this epoch."""
    found = [
        (of, position, entry)
        for position, (kind, by, of, entry, _) in enumerate(_entries(_content(file)))
        if (kind, by) == (LAST_STATE, worker) and of < epoch
    ]
    return max(found)[2] if found else None


def _content(file: int) -> bytes:
    """Returns the content after the part that main has freed."""
    try:
        while True:
            start = os.lseek(file, 0, os.SEEK_DATA)
            content = os.pread(file, os.fstat(file).st_size - start, start)
            # Otherwise main has freed a part meanwhile, which reads as zeros, and has written its states again before.
            if os.lseek(file, 0, os.SEEK_DATA) == start:
                return content
    except OSError:
        # The file is empty.
        return b""


def _entries(content: bytes) -> Iterator[tuple[int, int, int, bytes, int]]:
    """Returns the complete entries in a part of the file, each with its end."""
    start = content.find(_MARK)
    while start >= 0:
        body = start + _HEADER.size
        if len(content) >= body:
            _, kind, worker, epoch, size, checksum = _HEADER.unpack_from(content, start)
            entry = content[body : body + size]
            if len(entry) == size and zlib.crc32(entry) == checksum:
                yield kind, worker, epoch, entry, body + size
                start = content.find(_MARK, body + size)
                continue
        # The entry is not complete: a worker is writing it, or was killed while it wrote.
        start = content.find(_MARK, start + 1)
