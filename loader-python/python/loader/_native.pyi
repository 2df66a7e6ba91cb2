"""The extension module: the engine, as the package uses it. Its names may change in any release."""

from typing import Any, Callable

class Memory:
    """Bytes of a batch, in shared memory or on the heap, with the buffer protocol."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def allocate(size: int) -> Memory:
    """Allocates bytes for an array of the batch that this thread collates. Their content is undefined."""

class Engine:
    """A loader, with its dataset and options as they were when it was made."""

    def __init__(self, parts: Any) -> None: ...
    def iterate(self, epoch: int, loads: Callable[[Memory, list[Memory]], Any]) -> BatchIterator:
        """Begins an epoch."""

    def resume(self, state: str, loads: Callable[[Memory, list[Memory]], Any]) -> BatchIterator:
        """Continues from a state, as JSON."""

class BatchIterator:
    """The batches of an epoch. Waiting for one releases the interpreter's lock and notices Ctrl-C."""

    def __iter__(self) -> BatchIterator: ...
    def __next__(self) -> Any: ...
    def state(self) -> str | None:
        """Returns the position, as JSON; ``None`` once the iterator is closed."""

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the workers."""

    def report(self) -> str | None:
        """Returns the report of the epoch so far."""

    def last_batch(self) -> dict[str, Any] | None:
        """Returns what is known of the batch that was returned last."""

    def close(self) -> None:
        """Ends the workers, or keeps persistent ones for the next epoch."""

class Template:
    """A process that forks workers."""

    def __init__(self) -> None: ...
    def next_request(self) -> bool: ...
    def started(self, pid: int) -> None: ...
    def not_started(self, errno: int) -> None: ...
    def become_worker(self) -> None: ...

def serve() -> int:
    """Serves as a worker until main does not need it any more. Returns the exit code for the process."""

def start_template(program: str, arguments: list[str]) -> None:
    """Starts the template in main, unless it runs."""
