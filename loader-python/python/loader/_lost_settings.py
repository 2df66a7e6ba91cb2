"""Settings of main that workers do not have, because they import modules afresh. Worker 0 writes them into a file, and
main warns of them.

These values may be settings: a few settings of libraries, functions of the script that replace a library's own, and
plain values under the public names of the user's modules and classes. :func:`_is_setting` says which plain values that
differ in a worker are no settings:

- the values that a function of the module assigns, for example to count;
- the values whose default is the result of a call, such as the time;
- after the first comparison in the program, the values whose names are not in capitals, because the program may assign
  those as it counts.

Alternative considered: main finds the defaults in the source, without a worker. Rejected because it would name settings
that workers have too, from the top of the script.
"""

import ast
import json
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, NoneType
from typing import Any

from . import _script
from ._memory_file import MemoryFile

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
_SECRET = ("KEY", "PASSWORD", "SECRET", "TOKEN")
#: Longer values are not compared.
_MAX_LENGTH = 200
#: What main compares in place of a function or a class of the script that is in another module.
_REPLACEMENT = "the script's own"
#: Calls whose results are the same in each process.
_STABLE_CALLS = ("bool", "float", "int", "str", "os.environ.get", "os.getenv")

#: The lost settings of which main has warned.
_warned: set[str] = set()
_has_compared = False


class LostSettings(MemoryFile):
    """The file in which worker 0 writes which values of main differ from its own."""

    def __init__(self, method: str) -> None:
        super().__init__("loader-settings")
        self._method = method
        self._statements = _script.statements_not_run()
        self._is_read = False

    def warning(self) -> str | None:
        """Returns the text of a warning once worker 0 has written, if there is a lost setting of which main has not
        warned yet; otherwise ``None``."""
        global _has_compared
        if self._is_read:
            return None
        try:
            content = os.pread(self.fileno(), os.fstat(self.fileno()).st_size, 0)
        except RuntimeError:
            content = b"[]\n"  # The program has closed the descriptor. Other errors say so.
        if not content.endswith(b"\n"):
            return None
        is_first, _has_compared, self._is_read = not _has_compared, True, True
        lost = [
            f"{module}.{name} is {_shown(name, ours)} in this process and {_shown(name, theirs)} in a worker"
            for module, name, ours, theirs in json.loads(content)
            if _is_setting(module, name, ours, is_first)
        ]
        path = getattr(sys.modules["__main__"], "__file__", None) or ""
        for line, text in self._statements:
            lost.append(f"workers do not run line {line} of {os.path.basename(path)} ({text})")
        lost = [text for text in lost if text not in _warned]
        _warned.update(lost)
        return _text(lost, self._method) if lost else None


def _shown(name: str, value: str) -> str:
    return "not shown" if any(word in name.upper() for word in _SECRET) else value


def _text(lost: list[str], method: str) -> str:
    guard = ""
    if _script.is_sent_by_value():
        guard = 'put the lines that begin to train under `if __name__ == "__main__":`, '
    return (
        f"workers, which start by {method!r}, lack settings of this process, so samples may differ: {'; '.join(lost)}."
        f' Use multiprocessing_context="fork", {guard}set them in worker_init_fn, or keep them in attributes of the'
        " dataset; warn_lost_settings=False turns this warning off"
    )


def collect(program: list[str]) -> dict[str, dict[str, str]]:
    """Returns the values of main that may be settings, as texts, by module and name. ``program`` are the modules that
    main's program has imported."""
    found = ((name, _values(name, sys.modules.get(name))) for name in ("__main__", *_OF_LIBRARIES, *program))
    return {name: values for name, values in found if values}


def compare(ours: dict[str, dict[str, str]], file: int) -> None:
    """Writes, in a worker, which values of main differ from those of this process."""
    different = []
    for module, values in ours.items():
        # A module that the worker has not imported yet may get a value when it is imported.
        if module not in sys.modules:
            continue
        found = _values(module, sys.modules[module])
        for name, value in values.items():
            own = found.get(name, "the library's" if value == _REPLACEMENT else value)
            if own != value:
                different.append((module, name, value, own))
    # A worker that this one replaces may have written more.
    os.truncate(file, 0)
    os.pwrite(file, json.dumps(different).encode() + b"\n", 0)


def _values(name: str, module: Any) -> dict[str, str]:
    if not isinstance(module, ModuleType):
        return {}
    found = {}
    for key, get in _OF_LIBRARIES.get(name, {}).items():
        try:
            found[key] = str(get(module))
        except Exception:
            pass  # Another version of the library, or a module that is being imported.
    is_main = name == "__main__"
    if is_main and not _script.is_imported():
        return found
    is_own = is_main or _script.is_own(name)
    for key, value in list(vars(module).items()):
        # `isinstance` would ask a proxy for its class, and so might make the object.
        kind = type(value)
        is_class = issubclass(kind, type)
        if (is_class or kind is FunctionType) and value.__module__ in _script.NAMES and not is_main:
            found[key] = _REPLACEMENT
        elif is_own and is_class and value.__module__ in (name, *(_script.NAMES if is_main else ())):
            found.update(_plain_values(f"{key}.", value))
    if is_own:
        found.update(_plain_values("", module))
    return found


def _plain_values(prefix: str, owner: ModuleType | type) -> Iterator[tuple[str, str]]:
    for key, value in list(vars(owner).items()):
        if not key.startswith("_") and _is_plain(value) and len(text := repr(value)) <= _MAX_LENGTH:
            yield f"{prefix}{key}", text


def _is_plain(value: Any) -> bool:
    """Returns whether a value is plain and short enough for `repr`, which refuses large integers."""
    if type(value) is tuple:
        return len(value) <= _MAX_LENGTH and all(type(each) is not tuple and _is_plain(each) for each in value)
    if type(value) is int:
        return value.bit_length() <= 4 * _MAX_LENGTH
    return type(value) in _PLAIN and (not isinstance(value, (str, bytes)) or len(value) <= _MAX_LENGTH)


def _is_setting(module: str, key: str, value: str, is_first: bool) -> bool:
    """Returns whether a value that differs between main and a worker is one that the program has set."""
    if value == _REPLACEMENT or key in _OF_LIBRARIES.get(module, {}):
        return True
    owner, _, name = key.rpartition(".")
    tree = _script.tree_of(sys.modules[module]) if module in sys.modules else None
    if tree is None or not (is_first or name.isupper()):
        return False
    # Some variables of a script are used by its training loop only.
    is_variable = module == "__main__" and not owner and not name.isupper()
    if is_variable and not _is_read_by_definitions(tree, name):
        return False
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner]
    scopes = [node.body for node in classes] if owner else [tree.body]
    defaults = [each for scope in scopes for each in _assigned_values(scope, name)]
    return name not in _names_assigned_by_functions(tree) and all(map(_is_stable, defaults))


def _is_read_by_definitions(tree: ast.Module, name: str) -> bool:
    definitions = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    return any(isinstance(each, ast.Name) and each.id == name for node in definitions for each in ast.walk(node))


def _assigned_values(block: list[ast.stmt], name: str) -> Iterator[ast.expr]:
    """Returns what the statements of a block assign to a name, without those of functions, and those under a guard."""
    for statement in block:
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target)):
                yield statement.value
        for inner in _script.blocks_of(statement):
            yield from _assigned_values(inner, name)


def _names_assigned_by_functions(tree: ast.Module) -> set[str]:
    found = set()
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Global):
                    found.update(node.names)
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                        found.add(node.attr)
    return found


def _is_stable(default: ast.expr) -> bool:
    """Returns whether a default is the same in each process that imports the module."""
    for node in ast.walk(default):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in _STABLE_CALLS:
            return False
        if isinstance(node, ast.Name) and node.id == "__name__":
            return False
    return True
