"""The Python code of the template: the process that has imported large libraries, and forks a worker for each request
of main."""

import contextlib
import gc
import multiprocessing.resource_tracker
import os
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import util
from typing import NoReturn

from .. import _native, _worker_info
from .._pickling import _dataset_pickle
from .._program import _imports


def main() -> NoReturn:
    """Imports the script of main, or the modules that main has imported, and forks a worker for each request of main.

    The template must stay idle: beside these imports, it calls no function that starts threads or uses a GPU, because a
    fork copies neither.
    """
    # Python's own handler would raise `KeyboardInterrupt`. The template installs a handler that does nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    template = _native.Template()
    _worker_info.is_worker = True
    # Each worker gets the name that main has at `iter`.
    _dataset_pickle.set_parent_process(os.getppid(), "MainProcess")
    _imports.prepare_template(sys.argv[1:])
    # The top of the script may have closed them, and no file of the loader must get their numbers.
    _native.open_closed_streams()
    # Workers need these modules.
    from .._data import _fetch, _keys  # noqa: F401
    from .._pickling import _batch_pickle  # noqa: F401
    from .._program import _lost_settings  # noqa: F401
    from . import _worker  # noqa: F401

    if sys.modules.get("torch"):
        from .._data import _collate_torch  # noqa: F401
    else:
        from .._data import _collate_numpy  # noqa: F401

    # The imported objects stay, so the garbage collector of a worker neither visits them nor copies their memory.
    gc.collect()
    gc.freeze()
    # Each worker would print the rest of these buffers again.
    util._flush_std_streams()
    # Libraries that start threads when they are imported have fork handlers of their own.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    serve(template, _begin_worker)


def _begin_worker() -> None:
    if numpy := sys.modules.get("numpy"):
        # Without this, all workers would have the template's state. `os.fork` seeds Python's own generator.
        numpy.random.seed()


def serve(template: "_native.Template", begin_worker: Callable[[], None]) -> NoReturn:
    """Forks a worker, or a spare of this process, for each request of main. A worker calls ``begin_worker`` first."""
    while template.next_request():
        try:
            with keeping_resource_tracker():
                pid = os.fork()
        except OSError as error:
            template.not_started(error.errno)
            continue
        if pid != 0:
            template.started(pid)
        elif not template.become_spare():
            _run_worker(template, begin_worker)
    # This process has nothing to finish. In a fork of main, exit handlers and open files belong to main.
    os._exit(0)


@contextlib.contextmanager
def keeping_resource_tracker() -> Iterator[None]:
    """Lets the forks of this thread use main's resource tracker, as those of ``multiprocessing`` do. From Python 3.14.5
    on, any other fork closes its descriptor, and a tracker of its own removes the shared memory that it has attached."""
    intent = getattr(multiprocessing.resource_tracker, "_fork_intent", types.SimpleNamespace())
    intent.preserve_fd = True
    try:
        yield
    finally:
        intent.preserve_fd = False


def _run_worker(template: "_native.Template", begin_worker: Callable[[], None]) -> NoReturn:
    """Runs a forked worker, which never returns to the template's loop."""
    from . import _worker

    try:
        template.become_worker()
        begin_worker()
        _worker.main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(1)
