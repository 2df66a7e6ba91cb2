"""The start method ``fork``: main forks a template from itself, and the template forks the workers.

A worker that replaces another one is a fork of the same template, so it has the dataset as ``iter`` has seen it,
whatever main has changed since. Main forks once for all workers, in the thread of ``iter``, and nothing is pickled.

Alternative considered: main forks each worker, as ``multiprocessing`` does. Rejected because a worker that replaces
another one would have what main has changed since, and because main would fork at any moment, in another thread.
"""

import functools
import gc
import io
import itertools
import multiprocessing.process
import os
import signal
import stat
import sys
import warnings
from collections.abc import Callable
from multiprocessing import util
from typing import Any, NamedTuple, NoReturn

from .. import _native, _worker_info
from .._pickling import _dataset_pickle
from . import _template


class WorkerSetup(NamedTuple):
    """What the workers get from main, as :func:`_dataset_pickle.loads` returns it."""

    settings: dict[str, Any]
    value: Any
    files: _dataset_pickle.WorkerFiles


#: What this process has from main; ``None`` except in the template and in its workers.
inherited: WorkerSetup | None = None
#: In a fork: the standard streams of main, which must not be finalized there.
_streams_of_main: list[Any] = []
#: A process gets these signals from its own timers. All others may be meant for main.
_OF_TIMERS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
#: In the template: main's handlers for the signals of timers, which its workers get.
_timer_handlers: dict[int, Callable[..., Any]] = {}


def fork_template(setup: WorkerSetup) -> _native.ForkedTemplate:
    """Forks a template whose workers have ``setup``."""
    template, main_pid = _native.ForkedTemplate(), os.getpid()
    util._flush_std_streams()
    try:
        with _template.keeping_resource_tracker():
            is_child = template.fork()
        if is_child:
            _run_template(template, setup, main_pid)
    finally:
        if os.getpid() != main_pid:
            os._exit(1)
    return template


def warn_of_open_files(dataset: Any) -> None:
    """Warns if several workers would read a file of the dataset from one position, which each of them moves, so that
    samples would be wrong without an error. Looks only at the attributes of the dataset."""
    names = [name for name, value in list(getattr(dataset, "__dict__", {}).items()) if _is_read_from_position(value)]
    if names:
        warnings.warn(
            f"the dataset has an open file in its attribute {' and '.join(map(repr, names))}. Workers are forks of main,"
            " so all of them read it from one position, and samples may be wrong: open the file in worker_init_fn, or"
            " when the dataset first reads it",
            RuntimeWarning,
            stacklevel=2,
        )


def _is_read_from_position(value: Any) -> bool:
    try:
        return isinstance(value, io.IOBase) and value.readable() and stat.S_ISREG(os.fstat(value.fileno()).st_mode)
    except Exception:
        return False  # It is closed, or in memory.


def _run_template(forked: _native.ForkedTemplate, setup: WorkerSetup, main_pid: int) -> NoReturn:
    """Runs the template, which never returns to main's code."""
    global inherited
    try:
        # The collector would copy the memory of main's objects in each worker.
        gc.freeze()
        inherited = setup
        _worker_info.is_worker = _worker_info.is_fork = True
        _renew_streams()
        if numpy_random := sys.modules.get("numpy.random"):
            # A thread of main may draw numbers at the fork, and workers seed this generator.
            numpy_random.get_bit_generator().lock._at_fork_reinit()
        for number in signal.valid_signals():
            if callable(handler := signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
                if number in _OF_TIMERS:
                    _timer_handlers[number] = handler
        signal.set_wakeup_fd(-1)
        template = forked.in_child(sys.__stdin__ is not None, sys.__stderr__ is not None)
        _template.serve(template, functools.partial(_begin_worker, main_pid))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _renew_streams() -> None:
    """Replaces the standard streams of this process. If a thread of main has written to one at the fork, its lock stays
    locked, and what that thread has written is in the buffer: main prints it, and workers must not."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if type(stream) is not io.TextIOWrapper or type(stream.buffer) is not io.BufferedWriter or stream.closed:
                continue
        except ValueError:  # The stream has no buffer any more.
            continue
        renewed = open(
            stream.fileno(),
            "w",
            buffering=1 if stream.line_buffering else -1,
            encoding=stream.encoding,
            errors=stream.errors,
            closefd=False,
        )
        _streams_of_main.append(stream)
        setattr(sys, name, renewed)
        if getattr(sys, f"__{name}__") is stream:
            setattr(sys, f"__{name}__", renewed)
        logging = sys.modules.get("logging")
        for handler in [reference() for reference in logging._handlerList] if logging else ():
            if getattr(handler, "stream", None) is stream:
                handler.stream = renewed


def _begin_worker(main_pid: int) -> None:
    """Does what a process of ``multiprocessing`` does after a fork: removes main's child processes, finalizers and
    standard input from a worker. Restores the handlers for the signals of timers."""
    for number, handler in _timer_handlers.items():
        signal.signal(number, handler)
    multiprocessing.process._children = set()
    multiprocessing.process._process_counter = itertools.count(1)
    process = multiprocessing.process.current_process()
    _dataset_pickle.set_parent_process(main_pid, process.name)
    process.name = "loader-worker"
    # The object of main has what main has read ahead.
    sys.stdin = open(os.devnull)
    util._finalizer_registry.clear()
    util._run_after_forkers()
