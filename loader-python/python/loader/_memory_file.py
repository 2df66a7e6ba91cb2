"""Memory files (memfd) of main, which its workers get with the dataset."""

import errno
import os
from collections.abc import Callable
from typing import Any


class MemoryFile:
    """A memory file. It exists as long as this object exists in main, or a worker has it open or mapped."""

    def __init__(self, name: str) -> None:
        self._number = permitted("memfd_create", os.memfd_create, name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._identity = _identity(self._number)

    def fileno(self) -> int:
        """Returns the file's descriptor.

        Raises:
            RuntimeError: If the program has closed it. Its number may then be that of another file.
        """
        try:
            is_open = _identity(self._number) == self._identity
        except OSError:
            is_open = False
        if not is_open:
            raise RuntimeError(
                f"the program has closed descriptor {self._number}, which belongs to the loader: make a new DataLoader, or"
                " close only descriptors that the program has opened (os.closerange closes all)"
            )
        return self._number

    def _write(self, content: bytes | memoryview, offset: int) -> None:
        file, written = self.fileno(), 0
        with memoryview(content) as view:
            while written < len(view):
                written += os.pwrite(file, view[written:], offset + written)

    # When the interpreter ends, the module `os` may be gone.
    def __del__(self, close: Callable[[int], None] = os.close, fstat: Callable[[int], os.stat_result] = os.fstat) -> None:
        if (identity := getattr(self, "_identity", None)) is None:
            return
        try:
            status = fstat(self._number)
        except OSError:
            return
        if (status.st_dev, status.st_ino) == identity:
            close(self._number)


def permitted(call: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns ``function(*arguments)``. If a sandbox forbids the system call, its error names the call."""
    try:
        return function(*arguments)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        raise OSError(
            error.errno,
            f"{error.strerror}: a sandbox (seccomp) forbids the system call {call}; allow the call there, or load"
            " without workers (num_workers=0)",
        ) from None


def _identity(file: int) -> tuple[int, int]:
    """Returns the identity of a file, which no other file has as long as it exists."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino
