"""Settings of main that workers do not have, because they import modules afresh. Worker 0 writes them into a file, and
main warns of them.

These values may be settings: a few settings of libraries; the attributes of libraries that the script assigns;
functions and classes of the script that replace others; and plain values under the public names of the user's modules
and classes, also in dicts and in instances of the user's classes. :mod:`_assignments` says which plain values that
differ in a worker are settings.

Alternative considered: main finds the defaults in the source, without a worker. Rejected because it would name settings
that workers have too, from the top of the script.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, GetSetDescriptorType, ModuleType, NoneType
from typing import Any

from .._memory_file import MemoryFile
from . import _assignments, _script

#: Settings of libraries that change samples, by module and name.
_OF_LIBRARIES: dict[str, dict[str, Callable[[Any], Any]]] = {
    "PIL.Image": {"MAX_IMAGE_PIXELS": lambda module: module.MAX_IMAGE_PIXELS},
    "PIL.ImageFile": {"LOAD_TRUNCATED_IMAGES": lambda module: module.LOAD_TRUNCATED_IMAGES},
    "numpy": {"geterr()": lambda module: module.geterr()},
    "torch": {
        "are_deterministic_algorithms_enabled()": lambda module: module.are_deterministic_algorithms_enabled(),
        "get_default_device()": lambda module: module.get_default_device(),
    },
    "torchvision": {"get_image_backend()": lambda module: module.get_image_backend()},
}
_PLAIN = (bool, int, float, complex, str, bytes, NoneType)
#: Words in the names of values that a warning does not show, because a log would keep them.
_SECRET = ("AUTH", "CREDENTIAL", "KEY", "PASS", "PWD", "SECRET", "TOKEN")
#: Classes of the standard library whose instances hold settings.
_NAMESPACES = (("argparse", "Namespace"), ("types", "SimpleNamespace"))
#: Longer values are not compared, and neither are the values in a dict or an instance that has more of them.
_MAX_LENGTH = 200
#: Number of dicts and instances, one in another, in which values are compared.
_MAX_DEPTH = 2
#: Number of values of a module that are compared.
_MAX_VALUES = 2000
#: Number of settings that a warning names.
_MAX_NAMED = 20
#: What main compares in place of a function or a class of the script that is in another module or class.
_REPLACEMENT = "the script's own"
#: What a worker reports if it has no value of a name.
_MISSING = "missing"
_ABSENT = object()

#: The values of main that may be settings, as texts, by module and name; and the names of attributes of libraries that
#: the script assigns, by module.
Values = tuple[dict[str, dict[str, str]], dict[str, list[str]]]

#: The lost settings of which main has warned.
_warned: set[str] = set()
_has_compared = False


class LostSettings(MemoryFile):
    """The file in which worker 0 writes which values of main differ from its own."""

    def __init__(self, method: str, program: Iterable[str] = ()) -> None:
        """``program`` are the modules that main's program has imported."""
        super().__init__("loader-settings")
        self._method = method
        self._is_read = False
        #: What :func:`compare` gets.
        self.values: Values = {}, {}
        self._statements: list[tuple[int, str]] = []
        self._failure: str | None = None
        try:
            self.values, self._statements = _collect(program), _script.statements_not_run()
        except Exception as error:
            self._failure = _not_compared(error)

    def warning(self) -> str | None:
        """Returns the text of a warning once worker 0 has written, if there is a lost setting of which main has not
        warned yet; otherwise ``None``."""
        if self._is_read:
            return None
        if self._failure is None:
            try:
                return self._warning()
            except Exception as error:
                self._failure = _not_compared(error)
        self._is_read = True
        return self._failure

    def _warning(self) -> str | None:
        global _has_compared
        try:
            content = os.pread(self.fileno(), os.fstat(self.fileno()).st_size, 0)
        except RuntimeError:
            content = b"[]\n"  # The program has closed the descriptor. Other errors say so.
        if not content.endswith(b"\n"):
            return None
        is_first, _has_compared, self._is_read = not _has_compared, True, True
        different = json.loads(content)
        if isinstance(different, str):
            return different
        lost = [
            f"{module}.{name} is {_shown(name, ours)} in this process and {_shown(name, theirs)} in a worker"
            for module, name, ours, theirs, is_certain in different
            if is_certain or _assignments.is_setting(module, name, theirs == _MISSING, is_first)
        ]
        path = getattr(sys.modules["__main__"], "__file__", None) or ""
        for line, text in self._statements:
            lost.append(f"workers do not run line {line} of {os.path.basename(path)} ({_shown(text, text)})")
        lost = [text for text in lost if text not in _warned]
        _warned.update(lost)
        return _text(lost, self._method) if lost else None


def _shown(name: str, value: str) -> str:
    return "not shown" if any(word in name.upper() for word in _SECRET) else value


def _text(lost: list[str], method: str) -> str:
    guard = ""
    if _script.is_sent_by_value():
        guard = 'put the lines that begin to train under `if __name__ == "__main__":`, '
    named = lost[:_MAX_NAMED]
    if len(lost) > _MAX_NAMED:
        named.append(f"and {len(lost) - _MAX_NAMED} more")
    return (
        f"workers, which start by {method!r}, lack settings of this process, so samples may differ: {'; '.join(named)}."
        f' Use multiprocessing_context="fork", {guard}set them in worker_init_fn, or keep them in attributes of the'
        " dataset; warn_lost_settings=False turns this warning off"
    )


def _collect(program: Iterable[str]) -> Values:
    assigned: dict[str, list[str]] = {}
    for module, name in _script.assigned_attributes():
        # Of the user's modules, `_plain_values` returns the plain values, and some of these are counters.
        if not (_script.is_own(module) and _is_plain(_attribute(sys.modules.get(module), name))):
            assigned.setdefault(module, []).append(name)
    names = dict.fromkeys(("__main__", *_OF_LIBRARIES, *program, *assigned))
    found = ((name, _values(name, sys.modules.get(name), assigned.get(name, []))) for name in names)
    return {name: values for name, values in found if values}, assigned


def compare(ours: Values, file: int) -> None:
    """Writes, in a worker, which values of main differ from those of this process, or why it cannot compare them."""
    try:
        written = json.dumps(_different(ours))
    except Exception as error:
        written = json.dumps(_not_compared(error))
    # A worker that this one replaces may have written more.
    os.truncate(file, 0)
    os.pwrite(file, written.encode() + b"\n", 0)


def _different(ours: Values) -> list[tuple[str, str, str, str, bool]]:
    different = []
    for module, values in ours[0].items():
        # A module that the worker has not imported yet may get a value when it is imported.
        if not isinstance(sys.modules.get(module), ModuleType):
            continue
        assigned = ours[1].get(module, [])
        found = _values(module, sys.modules[module], assigned)
        for name, value in values.items():
            own = found.get(name, _absent(name, value, module))
            if own != value:
                is_certain = value == _REPLACEMENT or name in assigned or name in _OF_LIBRARIES.get(module, {})
                different.append((module, name, value, own, is_certain))
    return different


def _not_compared(error: Exception) -> str:
    return (
        "cannot find out whether workers lack settings of this process"
        f" ({type(error).__name__}: {error}); warn_lost_settings=False turns this warning off"
    )


def _absent(name: str, value: str, module: str) -> str:
    """Returns what a worker reports of a name that :func:`_values` has not found; ``value`` if nothing."""
    if value == _REPLACEMENT:
        return "the module's own"
    is_there = name in (_script.globals_of(module) if module == "__main__" else vars(sys.modules[module]))
    return value if is_there or not name.isidentifier() else _MISSING


def _values(name: str, module: Any, assigned: list[str]) -> dict[str, str]:
    if not isinstance(module, ModuleType) or not _script.is_executed(module):
        return {}
    is_main = name == "__main__"
    is_own = is_main or _script.is_own(name)
    texts = ((each, _text_of(_attribute(module, each))) for each in assigned)
    found = {each: text for each, text in texts if text is not None}
    for key, get in _OF_LIBRARIES.get(name, {}).items():
        try:
            found[key] = str(get(module))
        except Exception:
            pass  # Another version of the library, or a module that is being imported.
    if is_main and not _script.is_imported():
        return found
    names = (name, *_script.NAMES) if is_main else (name,)
    variables = _script.globals_of(name) if is_main else vars(module)
    for key, value in list(variables.items()):
        if not isinstance(key, str):
            continue  # The program has set it with `globals()`.
        # `isinstance` would ask a proxy for its class, and so might make the object.
        if not is_main and _is_of_script(value):
            found[key] = _REPLACEMENT
        elif is_own and issubclass(type(value), type) and value.__module__ in names:
            found.update(_values_of_class(key, value))
    if is_own:
        found.update(_plain_values("", variables))
    return found


def _values_of_class(name: str, owner: type) -> Iterator[tuple[str, str]]:
    yield from _plain_values(f"{name}.", vars(owner))
    for key, value in list(vars(owner).items()):
        function = _function_in(value)
        is_function = type(function) is FunctionType and _is_of_script(function)
        if is_function and function.__code__.co_qualname != f"{owner.__qualname__}.{key}":
            yield f"{name}.{key}", _REPLACEMENT


def _function_in(value: Any) -> Any:
    return value.__func__ if type(value) in (staticmethod, classmethod) else value


def _is_of_script(value: Any) -> bool:
    """Returns whether the script defines a function or a class. `functools.wraps` gives a function the name and the
    module of the one that it replaces."""
    if type(value) is FunctionType:
        return value.__globals__.get("__name__") in _script.NAMES
    return issubclass(type(value), type) and value.__module__ in _script.NAMES


def _text_of(value: Any) -> str | None:
    """Returns what a warning says of an attribute that the script assigns; ``None`` if nothing is compared."""
    if value is _ABSENT:
        return _MISSING
    if _is_plain(value):
        return text if len(text := repr(value)) <= _MAX_LENGTH else None
    value = _function_in(value)
    if _is_of_script(value):
        return _REPLACEMENT
    if type(value) is FunctionType:
        return f"{value.__globals__.get('__name__')}.{value.__code__.co_qualname}"
    return f"an object of the class {type(value).__module__}.{type(value).__qualname__}" if callable(value) else None


def _attribute(module: Any, name: str) -> Any:
    """Returns an attribute of a module or of a class in it, without running code."""
    found = module
    for part in name.split("."):
        found = vars(found).get(part, _ABSENT) if isinstance(found, (ModuleType, type)) else _ABSENT
    return found


def _plain_values(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Returns the plain values under the public names of a module or a class, and in their dicts and instances."""
    named = ((key, value) for key, value in list(values.items()) if isinstance(key, str))
    public = ((f"{prefix}{key}", value) for key, value in named if not key.startswith("_"))
    found = (each for key, value in public for each in _plain_parts(key, value, _MAX_DEPTH))
    return itertools.islice(found, _MAX_VALUES)


def _plain_parts(key: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if _is_plain(value):
        if len(text := repr(value)) <= _MAX_LENGTH:
            yield key, text
    elif depth > 0:
        for inner, item in _parts(value):
            yield from _plain_parts(f"{key}{inner}", item, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Returns the items of a dict with their keys, or the public attributes of an instance that may hold settings."""
    kind = type(value)
    parts = value if kind is dict else object.__getattribute__(value, "__dict__") if _may_hold_settings(kind) else {}
    if len(parts) <= _MAX_LENGTH:
        for key, item in list(parts.items()):
            if isinstance(key, str) and len(key) <= _MAX_LENGTH and (kind is dict or not key.startswith("_")):
                yield (f"[{key!r}]" if kind is dict else f".{key}"), item


def _may_hold_settings(kind: type) -> bool:
    """Returns whether instances of a class may hold settings: the user has defined it, and it is not that of a dataset,
    a sampler or a function, which main sends with all attributes, and has no property in place of ``__dict__``."""
    if (kind.__module__, kind.__qualname__) in _NAMESPACES:
        return True
    if kind.__dictoffset__ == 0 or not (kind.__module__ in _script.NAMES or _script.is_own(kind.__module__)):
        return False
    methods = {name for each in kind.__mro__ if each is not dict for name in vars(each)}
    dicts = (vars(each)["__dict__"] for each in kind.__mro__ if "__dict__" in vars(each))
    has_own_dict = all(type(each) is GetSetDescriptorType for each in dicts)
    return has_own_dict and methods.isdisjoint({"__getitem__", "__iter__", "__call__"})


def _is_plain(value: Any) -> bool:
    """Returns whether a value is plain and short enough for `repr`, which refuses large integers."""
    if type(value) is tuple:
        return len(value) <= _MAX_LENGTH and all(type(each) is not tuple and _is_plain(each) for each in value)
    if type(value) is int:
        return value.bit_length() <= 4 * _MAX_LENGTH
    return type(value) in _PLAIN and (not isinstance(value, (str, bytes)) or len(value) <= _MAX_LENGTH)
