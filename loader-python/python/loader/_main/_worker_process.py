"""A worker process of an iterator, for programs that use PyTorch's private list of workers."""

import time
import weakref
from collections.abc import Callable


class WorkerProcess:
    """A worker process, with methods of ``multiprocessing.Process``."""

    def __init__(self, pid: int, close: Callable[[], None]) -> None:
        self.pid = pid
        # The iterator ends its workers when the program drops it.
        self._close = weakref.WeakMethod(close)

    def terminate(self) -> None:
        """Ends all workers of the iterator, because the loader would replace a single one."""
        if (close := self._close()) is not None:
            close()

    kill = terminate

    def is_alive(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def join(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)
