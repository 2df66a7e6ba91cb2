"""Files in main's memory that its workers open by their path."""

import os
from collections.abc import Callable


class MemoryFile:
    """A file in memory. It exists as long as this object, in main, and as long as a worker has it open or mapped."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file = self._create()
        #: The path by which workers open it.
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"

    def _create(self) -> int:
        return os.memfd_create(self._name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def _replace(self) -> None:
        """Puts an empty file under the same path. Workers that have opened the one before still have it."""
        fresh = self._create()
        os.dup2(fresh, self._file, inheritable=False)
        os.close(fresh)

    def _write(self, content: bytes | memoryview, offset: int) -> None:
        written = 0
        with memoryview(content) as view:
            while written < len(view):
                written += os.pwrite(self._file, view[written:], offset + written)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # The module `os` may be gone when the interpreter ends.
        if (file := getattr(self, "_file", None)) is not None:
            close(file)
