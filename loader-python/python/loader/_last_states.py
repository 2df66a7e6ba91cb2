"""The states of a dataset in persistent workers at the end of an epoch, which no batch carries to main.

Main makes a file in memory. A worker that has reached the end of its part of an iterable dataset appends the state there,
before it reports the end to main. Workers are ahead of the program, so each state has the number of its epoch.
"""

import os
import struct

from ._memory_file import MemoryFile

#: Worker, epoch, and size of the state in bytes.
_HEADER = struct.Struct("<QQQ")


class LastStates(MemoryFile):
    """Main's side."""

    def __init__(self) -> None:
        super().__init__("loader-states")
        self._read = 0
        self._states: dict[int, dict[int, bytes]] = {}

    def before(self, epoch: int) -> dict[int, bytes]:
        """Returns the last state of each worker that is from an epoch before number ``epoch``."""
        self._receive()
        found = {}
        for worker, states in self._states.items():
            if earlier := [number for number in states if number < epoch]:
                found[worker] = states[max(earlier)]
        return found

    def begin_epoch(self, epoch: int) -> None:
        """Forgets the states that no later call of :meth:`before` returns, and begins with an empty file."""
        kept = self.before(epoch)
        self._states = {worker: {epoch - 1: state} for worker, state in kept.items()}
        self._replace()
        self._read = 0

    def _receive(self) -> None:
        content = os.pread(self._file, os.fstat(self._file).st_size - self._read, self._read)
        while len(content) >= _HEADER.size:
            worker, epoch, size = _HEADER.unpack_from(content)
            end = _HEADER.size + size
            if len(content) < end:
                # The worker is writing it.
                break
            self._states.setdefault(worker, {})[epoch] = content[_HEADER.size : end]
            content = content[end:]
            self._read += end


def append(path: str, worker: int, epoch: int, state: bytes) -> None:
    """Called in a worker."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        # One call, so that the records of two workers do not mix.
        os.write(file, _HEADER.pack(worker, epoch, len(state)) + state)
    finally:
        os.close(file)
