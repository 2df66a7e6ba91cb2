"""The start method ``fork``: main forks a template from itself, and the template forks the workers.

A worker that replaces another one is a fork of the same template, so it has the dataset as ``iter`` has seen it, whatever
main has changed since. Main forks once for all workers, in the thread of ``iter``, and nothing is pickled.

Alternative considered: main forks each worker, as ``multiprocessing`` does. Rejected because a worker that replaces
another one would have what main has changed since, and because main would fork at any moment, in another thread.
"""

import contextlib
import gc
import itertools
import multiprocessing.process
import os
import signal
import sys
from multiprocessing import util
from typing import Any, NamedTuple, NoReturn

from . import _dataset_pickle, _native, _template, _worker_info


class Sent(NamedTuple):
    """What the workers have from main, as :func:`_dataset_pickle.loads` returns it."""

    settings: dict[str, Any]
    value: Any
    opened: _dataset_pickle.Opened


#: What this process has from main; ``None`` except in the template and in its workers.
inherited: Sent | None = None


def fork_template(sent: Sent) -> _native.ForkedTemplate:
    """Forks a template whose workers have ``sent``."""
    template, main_pid = _native.ForkedTemplate(), os.getpid()
    util._flush_std_streams()
    # No handler of main runs in the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run_template(template, sent, main_pid)
        template.in_main(pid)
    finally:
        if os.getpid() != main_pid:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return template


def _run_template(forked: _native.ForkedTemplate, sent: Sent, main_pid: int) -> NoReturn:
    """Runs the template, which never returns to main's code."""
    global inherited
    try:
        # The collector would copy the memory of main's objects in each worker.
        gc.freeze()
        inherited = sent
        _worker_info.is_worker = True
        # Otherwise a worker that is killed would lose the lines that it has printed. The program may have replaced the
        # stream by one that has no such option.
        with contextlib.suppress(Exception):
            sys.stdout.reconfigure(line_buffering=True)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        _leave_multiprocessing(main_pid)
        _template.serve(forked.in_child())
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _leave_multiprocessing(main_pid: int) -> None:
    """Does what a process of ``multiprocessing`` does after a fork: main's child processes and finalizers are not those
    of the workers."""
    multiprocessing.process._children = set()
    multiprocessing.process._process_counter = itertools.count(1)
    _dataset_pickle.set_parent_process(main_pid)
    multiprocessing.process.current_process().name = "loader-worker"
    util._finalizer_registry.clear()
    util._run_after_forkers()
