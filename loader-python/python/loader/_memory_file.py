"""Memory files (memfd) of main, which its workers open by path."""

import os
from collections.abc import Callable


class MemoryFile:
    """A memory file. It exists as long as this object exists in main, or a worker has it open or mapped."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file = self._create()
        #: The path by which workers open it.
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"

    def _create(self) -> int:
        return os.memfd_create(self._name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)

    def _replace(self) -> None:
        """Puts an empty file at the same path. Workers that have opened the previous file keep it."""
        fresh = self._create()
        os.dup2(fresh, self._file, inheritable=False)
        os.close(fresh)

    def _write(self, content: bytes | memoryview, offset: int) -> None:
        written = 0
        with memoryview(content) as view:
            while written < len(view):
                written += os.pwrite(self._file, view[written:], offset + written)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # When the interpreter ends, the module `os` may be gone.
        if (file := getattr(self, "_file", None)) is not None:
            close(file)
