"""The modules that main has imported, which workers import too if they do not import its script: an import may register
a format or a codec."""

import base64
import functools
import importlib
import os
import pickle
import sys
import zlib
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType

from .. import _native
from . import _script

#: The libraries that a template imports if main has imported them, whatever the script is. Their import takes long, and
#: each worker needs PyTorch.
_LARGE_LIBRARIES = ("numpy", "torch", "torchvision")
#: Maximum length of an argument of a template. The kernel allows 128 KiB.
_MAX_ARGUMENT = 100_000


@functools.cache
def _first_modules() -> tuple[str, ...]:
    """Returns the modules that main has imported when it makes its first loader with workers that need them."""
    return tuple(modules_of_program())


def template_arguments() -> list[str]:
    """Returns the arguments of a template that say what it imports. They stay the same as long as main's environment
    does, so all loaders share a template."""
    # Main starts the template without the variables of its launcher, such as `RANK`, which the script may read.
    variables = {name: os.environ[name] for name in _native.launchers_variables() if name in os.environ}
    written = base64.b85encode(zlib.compress(pickle.dumps((variables, _for_template())))).decode()
    return [written[start : start + _MAX_ARGUMENT] for start in range(0, len(written), _MAX_ARGUMENT)]


@functools.cache
def _for_template() -> bytes:
    """Returns what a template imports, as a pickle, so that the program cannot change it later when it changes
    `sys.argv` or `sys.path`."""
    # All users can read the arguments of a process, so each worker gets the key from main, and the rest with it.
    left_out = ("authkey", "dir", "log_to_stderr", "log_level")
    data = {key: value for key, value in _script.preparation(_script.is_imported()).items() if key not in left_out}
    large = tuple(name for name in _LARGE_LIBRARIES if sys.modules.get(name))
    return pickle.dumps((data, (*(_first_modules() if _script.is_sent_by_value() else ()), *large)))


def prepare_template(arguments: Iterable[str]) -> None:
    """Imports, in a template, what :func:`template_arguments` has written."""
    variables, rest = pickle.loads(zlib.decompress(base64.b85decode("".join(arguments))))
    os.environ.update(variables)
    data, names = pickle.loads(rest)
    try:
        _script.prepare(data)
    except (Exception, SystemExit) as error:
        _script.failure = error
    import_all(names)


def modules_for_workers(method: str, program: list[str]) -> list[str]:
    """Returns the modules that a worker imports in addition to its template, in main's order, where ``program`` is what
    :func:`modules_of_program` returns now."""
    if not _script.is_sent_by_value():
        return []
    first = _first_modules()
    return program if method == "spawn" else [name for name in program if name not in first]


def modules_of_program() -> list[str]:
    """Returns the modules that the program of main has imported, in their order: those of the user, and those of
    libraries that the script names. Their import also imports what they need.

    Alternative considered: all modules of main. Rejected because libraries import many modules when they use them: a
    first optimizer makes PyTorch import 900 modules of its compiler, which take seconds.
    """
    named = _named_modules()
    return [name for name in list(sys.modules) if name in named or _script.is_own(name)]


def import_all(names: Iterable[str]) -> None:
    for name in names:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except (Exception, SystemExit):
                pass  # A worker that needs the module raises the error.


def _named_modules() -> set[str]:
    """Returns the modules outside of the standard library that the script names, in its imports and in its variables,
    and the packages that they are in."""
    main = sys.modules["__main__"]
    found = set(_script.imports(main))
    for value in list(vars(main).values()):
        kind = type(value)
        if issubclass(kind, ModuleType) and _script.is_executed(value):
            found.add(value.__name__)
        elif issubclass(kind, type) or kind in (FunctionType, BuiltinFunctionType):
            found.add(value.__module__)
    found = {name for name in found if isinstance(name, str) and not _script.is_standard(name)}
    found |= {name.partition(".")[0] for name in found}
    left_out = (_script.PACKAGE, *_script.NAMES)
    return {name for name in found if _script.has_file(name) and name.partition(".")[0] not in left_out}
