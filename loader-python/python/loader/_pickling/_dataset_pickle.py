"""The pickle of the dataset and the user's functions, which main sends to each worker."""

import contextlib
import multiprocessing.process
import multiprocessing.resource_tracker
import multiprocessing.spawn
import multiprocessing.util
import os
import pickle
import stat
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import _errors
from .._program import _imports, _script
from . import _by_value, _sharing_pickler
from ._shared_arrays import ArrayFile, open_arrays

#: The variables that the loader adds to the environment of a new process.
_VARIABLES_OF_LOADER = {"LOADER_WORKER_LIFELINE", "PYTHONHASHSEED"}
#: Number of levels at which an error looks for what cannot be pickled.
_MAX_DEPTH = 10


class WorkerFiles(NamedTuple):
    """The descriptors of main's files that a worker uses as long as it runs."""

    #: The files of keys.
    keys: list[int]
    #: ``None`` for a map-style dataset.
    epoch_log: int | None
    #: The file in which a worker writes which settings of main it does not have; ``None`` if main does not ask.
    lost_settings: int | None = None


def dumps(
    value: Any, settings: dict[str, Any], arrays: ArrayFile, keys: Any, others: dict[str, Any]
) -> tuple[bytes, list[Any]]:
    """Returns what :func:`loads` reads in a worker: ``settings``, which need nothing to be prepared, and ``value``,
    whose large arrays go into ``arrays``; and the files that each worker gets with them. Sets in ``keys`` whether
    workers have what the script defines, and what main has sent by value. ``others`` are files of main, by their names
    in :class:`WorkerFiles`.

    Raises:
        MemoryError: If the pickle does not fit into main's memory.
        pickle.PicklingError: If the value cannot be pickled, or needs a ``__main__`` that no worker can import.
    """
    try:
        (inner, descriptors), needs_main = _dumps(value, arrays, keys.sent)
    except MemoryError as error:
        raise MemoryError(
            f"main has no memory for the pickle of the dataset: {_errors.memory_limits()}; raise the limit, or keep large"
            " lists in NumPy arrays, of which the pickle has no copy"
        ) from error
    keys.needs_main = needs_main and not _script.names_under_guard()
    arrays.seal()
    own = {"arrays": arrays, "keys": keys.files[0], "other keys": keys.files[1], **others}
    if (tracker := _resource_tracker()) is not None:
        own["resource tracker"] = _sharing_pickler.Duplicate(tracker)
    multiprocessing.spawn._check_not_importing_main()
    main = os.getpid(), multiprocessing.process.current_process().name
    prepared = _script.preparation(needs_main), main, dict(os.environ), settings, list(own), arrays.ranges
    outer = pickle.dumps(prepared, protocol=5)
    content = len(outer).to_bytes(8, "little") + outer + inner
    return content, [*own.values(), *descriptors]


def loads(memory: Any, files: list[int]) -> tuple[dict[str, Any], Any, WorkerFiles]:
    """Prepares this process as :func:`dumps` says, and returns the settings, the value, and those of the descriptors
    ``files`` that stay open."""
    with memoryview(memory) as view:
        size = 8 + int.from_bytes(view[:8], "little")
        preparation, main, environment, settings, names, ranges = pickle.loads(view[8:size])
        _set_environment(environment)
        set_parent_process(*main)
        _enter(preparation.pop("dir"))
        own = dict(zip(names, files))
        if (tracker := own.get("resource tracker")) is not None:
            multiprocessing.resource_tracker._resource_tracker._fd = tracker
        _script.prepare(preparation)
        _imports.import_all(settings["imports"])
        with _sharing_pickler.received(files[len(own) :]):
            value = pickle.loads(view[size:], buffers=open_arrays(own["arrays"], ranges))
        os.close(own["arrays"])
        _by_value.end_dataset()
        own_files = WorkerFiles([own["keys"], own["other keys"]], own.get("epoch_log"), own.get("lost_settings"))
        return settings, value, own_files


def _set_environment(environment: dict[str, str]) -> None:
    """Gives this process the environment that main had when it made the pickle. The engine removes the variables of
    launchers from the environment of its workers, and a dataset of PyTorch may read its rank in them."""
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    # The programs that a worker starts must not have what the loader has added.
    for name in _VARIABLES_OF_LOADER - environment.keys():
        os.environ.pop(name, None)


def _enter(folder: str | None) -> None:
    """Enters the directory that was main's when it made the pickle. A worker has inherited the directory that is main's
    now, which is usually the same one. It then does not enter it again, because it may not be allowed to."""
    if folder is not None and folder != _script.working_directory():
        os.chdir(folder)


def _resource_tracker() -> int | None:
    """Returns the descriptor of main's resource tracker. Workers use it too, as those of PyTorch do: a tracker of their
    own would remove the shared memory that they have attached when they end. ``None`` if main cannot start its tracker,
    or if the program has closed the descriptor."""
    tracker = multiprocessing.resource_tracker._resource_tracker
    with contextlib.suppress(OSError):
        if tracker._fd is None:
            tracker.ensure_running()
        if stat.S_ISFIFO(os.fstat(tracker._fd).st_mode):
            return tracker._fd
    return None


def set_parent_process(main_pid: int, name: str) -> None:
    """Sets what ``multiprocessing.parent_process`` returns. Modules ask it whether they are imported in a worker."""
    # Main may have ended, or Python or the kernel has no pidfd.
    with contextlib.suppress(AttributeError, OSError):
        parent = multiprocessing.process._ParentProcess(name, main_pid, os.pidfd_open(main_pid))
        multiprocessing.process._parent_process = parent


def _dumps(
    value: Any, arrays: ArrayFile, sent: _by_value.SentObjects
) -> tuple[tuple[bytes, list[_sharing_pickler.Duplicate]], bool]:
    """Returns what :func:`_pickle` returns, and whether a worker must import the user's script to read it.

    With cloudpickle, main sends by value what workers cannot import: lambdas, local classes and functions, and what a
    script defines that workers do not import (`_script`).
    """
    is_imported = _script.is_imported()
    try:
        return _pickle(value, arrays, _by_value.ReferencePickler), is_imported
    except MemoryError:
        raise
    except Exception as error:
        is_in_main_only = isinstance(error, _by_value.NotInWorkers)
    try:
        pickler, needs_main, advice = sent.dataset_pickler(), is_imported, ""
    except ImportError:
        pickler, needs_main = pickle.Pickler, True
        advice = " or install cloudpickle, which can pickle local functions and classes,"
        if is_in_main_only and not _has_importable_main():
            raise pickle.PicklingError(
                "the dataset or one of its functions is defined in an interactive session, which no worker can import;"
                " install cloudpickle, or define it in a module"
            ) from None
    try:
        return _pickle(value, arrays, pickler), needs_main
    except MemoryError:
        raise
    except Exception as error:
        problem = error
    sent.clear()
    if not advice and is_in_main_only and not is_imported and _can_be_pickled(value, pickle.Pickler):
        advice = ' or put the lines that begin to train under `if __name__ == "__main__":`,'
    raise pickle.PicklingError(
        f"{_culprit(value, pickler)} cannot be sent to the workers: {problem}; define classes and functions at the top"
        f" level of a module,{advice} and open files and connections in the worker (in worker_init_fn or when they are"
        " first used)"
    ) from problem


def _pickle(value: Any, arrays: ArrayFile, base: type) -> tuple[bytes, list[_sharing_pickler.Duplicate]]:
    """Returns the pickle, and the descriptors that it refers to by their positions."""
    arrays.clear()
    pickled, arrays.mappings, descriptors = _sharing_pickler.dumps(value, arrays.add, base)
    return pickled, descriptors


def _culprit(value: tuple[Any, Any, Any], pickler: type) -> str:
    """Returns the name of the innermost attribute or element of the dataset or of a function that the pickler cannot
    pickle."""
    for name, part in zip(("collate_fn", "worker_init_fn", "the dataset"), value):
        if not _can_be_pickled(part, pickler):
            break
    else:
        return "the dataset or one of its functions"
    path = f"{name} ({type(part).__qualname__})"
    for _ in range(_MAX_DEPTH):
        bad = next((inner for inner in _inside(part) if not _can_be_pickled(inner[1], pickler)), None)
        if bad is None:
            break
        name, part = bad
        path = f"{name} of {path}"
    return path


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Returns the attributes of an object, or the elements of a container, each with a name for the error."""
    if isinstance(value, dict):
        yield from ((f"element {key!r}", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"element {index}", item) for index, item in enumerate(value))
    else:
        yield from ((f"attribute {name!r}", item) for name, item in getattr(value, "__dict__", {}).items())


def _can_be_pickled(value: Any, pickler: type) -> bool:
    try:
        _sharing_pickler.dumps(value, keeps=lambda _array: False, base=pickler)
    except Exception:
        return False
    return True


def _has_importable_main() -> bool:
    main = sys.modules["__main__"]
    # A script that Python reads from its standard input has the file `<stdin>`.
    return getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", None) or "")
