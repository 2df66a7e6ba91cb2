"""Describes the exceptions of user code in a worker, and makes them again in main. The engine calls these functions."""

import importlib
import resource
import sys
import traceback
import warnings
from types import FrameType, TracebackType

from . import _native

# Maximum lengths of a traceback and of an exception in one line, in characters. The engine carries at most 16 KiB of a
# traceback.
MAX_TRACEBACK = 5000
MAX_LINE = 500


def describe(exception: BaseException) -> tuple[str, str, str]:
    """Returns the exception in one line, its traceback and the location of its class (``module:name``), as texts."""
    kind = type(exception)
    lines = "".join(traceback.format_exception(kind, exception, exception.__traceback__))
    if isinstance(exception, MemoryError):
        lines = f"{lines.rstrip()} ({memory_limits()})\n"
    if len(lines) > MAX_TRACEBACK:
        # The end of the traceback has the exception itself, so the middle is left out.
        half = MAX_TRACEBACK // 2
        lines = f"{lines[:half]}\n  [{len(lines) - 2 * half} characters left out]\n{lines[-half:]}"
    line = " ".join("".join(traceback.format_exception_only(kind, exception)).split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}...", lines, f"{kind.__module__}:{kind.__qualname__}"


def memory_limits() -> str:
    """Returns the limits on the memory of this process, for the error that it has none."""
    limits = {"ulimit -d": resource.RLIMIT_DATA, "ulimit -v": resource.RLIMIT_AS}
    found = {name: resource.getrlimit(limit)[0] for name, limit in limits.items()}
    texts = [f"`{name}` is {limit >> 10} KiB" for name, limit in found.items() if limit != resource.RLIM_INFINITY]
    return " and ".join(texts) or "no limit is set, so the machine or its control group has no memory left"


def raised_again(text: str, location: str, worker: int | None) -> BaseException | None:
    """Makes the exception of a worker again, with the worker's traceback in its message, as PyTorch does. Returns
    ``None`` if ``location`` does not have the form that :func:`describe` gives."""
    module, separator, name = location.partition(":")
    if not separator:
        return None
    where = f"in DataLoader worker process {worker}" if worker is not None else "in the DataLoader"
    message = f"Caught {name.rpartition('.')[2]} {where}.\nOriginal {text}"
    kind = find_class(module, name)
    if kind is None:
        return RuntimeError(message)
    if issubclass(kind, StopIteration):
        # `StopIteration` would end the epoch in main without a message.
        return RuntimeError(message)
    if kind is KeyError:
        return KeyError(Message(message))
    try:
        if getattr(kind, "message", None):
            # Some classes take their message by name only.
            return kind(message=message)
        return kind(message)
    except Exception:
        # The class needs other arguments.
        return RuntimeError(message)


class Message(str):
    """A text whose representation is the text itself, because ``KeyError`` shows the representation of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def find_class(module: str, name: str) -> type[BaseException] | None:
    # A worker has imported the user's script under this name.
    module = "__main__" if module == "__mp_main__" else module
    try:
        found = sys.modules.get(module) or importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:
        return None
    # `SystemExit` and others that are no `Exception` concern the worker's process, not main's.
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def warn(text: str, stacklevel: int = 4) -> None:
    """Gives a warning of the engine, by default from `next` of its iterator. It has the line of the program. In it, the
    text of an exception has its control characters escaped."""
    warnings.warn(_native.printable(text), RuntimeWarning, stacklevel=stacklevel)


def is_of_signal_handler(raised_at: TracebackType | None) -> bool:
    """True if the handler of a signal has raised the exception that has this traceback. Python runs handlers in
    whatever code the main thread runs, and gives them the frame of that code, which is then their caller."""
    return any(_has_argument(frame, frame.f_back) for frame, _ in traceback.walk_tb(raised_at))


def _has_argument(frame: FrameType, wanted: FrameType | None) -> bool:
    if wanted is None:
        return False
    values = list(frame.f_locals.values())
    # The arguments of `def handler(*args)`.
    values += [element for value in values if type(value) is tuple for element in value]
    return any(value is wanted for value in values)
