"""The command lines with which main starts Python as a worker, or as the template that forks workers."""

import errno
import functools
import multiprocessing
import os
import random
import shutil
from multiprocessing import spawn, util
from typing import Any, NamedTuple

from .. import _native
from .._program import _imports

#: The seed of the hashes of strings in workers. A new worker must iterate over a set in the same order as the worker
#: that it replaces.
_HASH_SEED = random.SystemRandom().randrange(1, 1 << 32)


def start_method(context: Any) -> str:
    """Returns the name of the start method: ``"fork"``, ``"forkserver"`` or ``"spawn"``. ``context`` is the
    ``multiprocessing_context`` of a loader; without one, it is the default of ``multiprocessing``. Processes that fork
    workers need pidfds; without pidfds, it is ``"spawn"``."""
    # `get_start_method` of the module would choose the default for good, and `set_start_method` would fail later.
    method = multiprocessing.get_start_method(allow_none=True) if context is None else context.get_start_method()
    method = method or multiprocessing.get_all_start_methods()[0]
    return method if method == "spawn" or _has_pidfds() else "spawn"


def _has_pidfds() -> bool:
    """Returns whether the kernel has pidfds (Linux 5.3), and no sandbox forbids them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        # Other errors, such as the limit on open files, are not about pidfds.
        return error.errno not in (errno.EPERM, errno.ENOSYS)
    return True


class Command(NamedTuple):
    """The command line of a worker, or of the template that forks workers."""

    program: str
    arguments: list[str]
    is_template: bool


def command(method: str) -> Command:
    """Returns the command line for a start method that needs one."""
    is_template = method == "forkserver"
    return Command(interpreter(), template_arguments() if is_template else worker_arguments(), is_template)


def interpreter() -> str:
    path = os.fsdecode(spawn.get_executable())
    if shutil.which(path) is None:
        problem = f"there is no Python interpreter at {path}"
        try:
            os.stat(path)
            problem = f"the Python interpreter {path} cannot be executed"
        except PermissionError:
            problem = f"user {os.geteuid()} may not enter the folders of the Python interpreter {path}"
        except OSError:
            pass
        raise RuntimeError(f"workers cannot start: {problem}; correct it with multiprocessing.set_executable()")
    return path


def worker_arguments() -> list[str]:
    """Returns the interpreter's arguments for a worker that is started afresh."""
    return _arguments("from loader._workers._worker import main; main()")


def template_arguments() -> list[str]:
    """Returns the interpreter's arguments for the template."""
    return [*_arguments("from loader._workers._template import main; main()"), *_imports.template_arguments()]


@functools.cache
def rust_worker_arguments() -> list[str]:
    """Returns the interpreter's arguments for a worker of a Rust dataset. The worker imports the extension module and
    no other module of this package. The interpreter imports no ``site``, and ignores its environment variables."""
    folder = os.path.dirname(os.path.abspath(_native.__file__))
    code = f"import os, sys; sys.path.append({folder!r}); import _native; os._exit(_native.serve())"
    return ["-I", "-S", "-c", code]


def _arguments(code: str) -> list[str]:
    # `-P` keeps the working directory out of `sys.path`, because it may have a module with the name of this package. An
    # interpreter reads the seed of its hashes when it starts, so it executes itself a second time.
    folder = os.path.dirname(os.path.dirname(os.path.abspath(_native.__file__)))
    start = (
        "import os, sys\n"
        "if os.environ.get('PYTHONHASHSEED', 'random') == 'random':\n"
        f"    os.environ['PYTHONHASHSEED'] = '{_HASH_SEED}'\n"
        "    os.execv(sys.executable, sys.orig_argv)\n"
        f"sys.path.insert(0, {folder!r})\n{code}"
    )
    return [*util._args_from_interpreter_flags(), "-P", "-c", start]
