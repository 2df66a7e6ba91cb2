"""The script of main: whether workers import it, and which of its statements they do not run.

Workers import a script that has a *guard*, ``if __name__ == "__main__":``, as the module ``__mp_main__``, as those of
``multiprocessing`` do. Any other program would begin to train in each worker, so main sends what it defines by value,
and workers import the modules that main has imported (`_imports`).

Alternative considered: decide by whether the loader is made under the guard. Rejected because a script may make it at
its top and iterate over it under the guard.
"""

import ast
import functools
import importlib.util
import multiprocessing.process
import multiprocessing.util
import operator
import os
import sys
import tokenize
import warnings
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

#: The names of the module of the script in main and in workers.
NAMES = ("__main__", "__mp_main__")
#: The name of this package.
PACKAGE = __name__.partition(".")[0]

#: In a template and in its workers: what the import of the script has raised. A worker does not import it again, because
#: what it has registered until then cannot be registered twice, and raises this error.
failure: BaseException | None = None
#: Prefixes of the names of functions that register something in a library, or replace a part of it.
_REGISTERING = ("register", "add_safe_globals", "patch")


def is_imported() -> bool:
    """Returns whether workers import the script."""
    main = sys.modules["__main__"]
    if main.__name__ == "__mp_main__":
        # `multiprocessing` has spawned this process and imported the script in it.
        return True
    if _is_main_of_package(main) or is_standard(_name_of(main)):
        # It is a tool, such as pytest or cProfile.
        return False
    return (tree := tree_of(main)) is not None and _has_guard(tree)


def is_sent_by_value() -> bool:
    """Returns whether main sends by value what its script defines, because workers do not import the script. They then
    import the modules of main. The `__main__.py` of a package is the program of a tool, such as pytest: for it, workers
    import neither the script nor its modules, and `multiprocessing` does not either."""
    return not is_imported() and not _is_main_of_package(sys.modules["__main__"])


def workers_have(value: Any) -> bool:
    """Returns whether a class, a function or a type variable of the script is in the module that workers import."""
    name = _qualified_name(value)
    return (
        getattr(value, "__module__", None) in NAMES
        and is_imported()
        and name.partition(".")[0] not in names_under_guard()
        and is_in_its_module(value)
    )


def is_in_its_module(value: Any) -> bool:
    """Returns whether the module of a class or a function has it under its name."""
    try:
        return operator.attrgetter(_qualified_name(value))(sys.modules[value.__module__]) is value
    except (AttributeError, KeyError):
        return False


def _qualified_name(value: Any) -> str:
    """Returns the name of a class, a function or a type variable, with those of the classes and functions around it."""
    # A type variable has only a `__name__`.
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", "")


def names_under_guard() -> frozenset[str]:
    """Returns the names that the script binds under its guard only."""
    tree = tree_of(sys.modules["__main__"])
    return frozenset() if tree is None else _names_under_guard(tree)


def names_not_imported() -> frozenset[str]:
    """Returns the globals of the script that it binds under its guard or in a function, or that it does not bind."""
    main = sys.modules["__main__"]
    tree = tree_of(main)
    return frozenset(globals_of(main.__name__)) - (frozenset() if tree is None else _names_of_import(tree))


def workers_import(module: str, of_functions: dict[str, Any]) -> bool:
    """Returns whether workers import a module, of whose functions these are the globals."""
    if module in NAMES:
        return is_imported() and of_functions is globals_of(module)
    import cloudpickle

    found = sys.modules.get(module)
    is_sent = any(f"{module}.".startswith(f"{each}.") for each in cloudpickle.list_registry_pickle_by_value())
    return found is not None and vars(found) is of_functions and has_file(module) and not is_sent


def globals_of(module: str) -> dict[str, Any]:
    """Returns the globals of the functions of a module. `multiprocessing` imports the script in a worker with `runpy`,
    so the module `__main__` has a copy of them there."""
    if module not in NAMES:
        return vars(importlib.import_module(module))
    main = sys.modules["__main__"]
    if main.__name__ != "__mp_main__":
        return vars(main)
    for value in list(vars(main).values()):
        for each in (value, *(vars(value).values() if issubclass(type(value), type) else ())):
            if type(each) is FunctionType and each.__globals__.get("__name__") == "__mp_main__":
                return each.__globals__
    return vars(main)


def has_file(name: str) -> bool:
    """Returns whether another process can import a module. A module that was made at run time has no specification, or
    it has that of another module. One of `importlib.util.LazyLoader` that the program has not used yet counts as not
    imported."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None) if is_executed(module) else None
    return getattr(spec, "name", None) == name and isinstance(getattr(spec, "origin", None), str)


def is_executed(module: Any) -> bool:
    """Returns whether one can look at a module without executing it, as for all but those of a lazy loader."""
    return type(module) is not importlib.util._LazyModule


def preparation(needs_main: bool) -> dict[str, Any]:
    """Returns the data with which ``multiprocessing.spawn.prepare`` gives a worker main's ``sys.path``, ``sys.argv``
    and working directory, and, if ``needs_main``, imports the user's script. This is what ``get_preparation_data``
    returns, except that the working directory is ``None`` if it was removed."""
    first = multiprocessing.process.ORIGINAL_DIR
    data = {
        "name": "loader-worker",
        "authkey": bytes(multiprocessing.process.current_process().authkey),
        "log_to_stderr": multiprocessing.util._log_to_stderr,
        "sys_path": [folder or first for folder in sys.path],
        "sys_argv": sys.argv,
        "dir": working_directory(),
        "orig_dir": first,
    }
    # Without an argument, the function would choose the default for good.
    if (method := multiprocessing.get_start_method(allow_none=True)) is not None:
        data["start_method"] = method
    if multiprocessing.util._logger is not None:
        data["log_level"] = multiprocessing.util._logger.getEffectiveLevel()
    main = sys.modules["__main__"]
    if needs_main and (name := getattr(main.__spec__, "name", None)) is not None:
        data["init_main_from_name"] = name
    elif needs_main and (path := _path_of(main)) is not None:
        data["init_main_from_path"] = path
    return data


def prepare(data: dict[str, Any]) -> None:
    """Prepares this process as :func:`preparation` says. While it imports the script, `multiprocessing` refuses to
    start processes."""
    import multiprocessing.spawn

    if failure is not None and any(key.startswith("init_main") for key in data):
        raise failure
    process = multiprocessing.process.current_process()
    process._inheriting = True
    try:
        multiprocessing.spawn.prepare(data)
    finally:
        del process._inheriting


def is_being_imported() -> bool:
    """Returns whether this process is one of `multiprocessing` that still imports the script."""
    return getattr(multiprocessing.process.current_process(), "_inheriting", False)


def working_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def statements_not_run() -> list[tuple[int, str]]:
    """Returns the statements with which main has changed other modules, in a script that workers do not import, and
    their lines: assignments to an attribute of a module or a class from outside of the standard library, and calls and
    decorators whose names say that they register something.

    Alternative considered: every call at the top of the script. Rejected because a script calls `torch.manual_seed`,
    `plt.style.use` and the like there, which change no samples.
    """
    main = sys.modules["__main__"]
    if not is_sent_by_value() or (tree := tree_of(main)) is None:
        return []
    aliases = (node for node in ast.walk(tree) if isinstance(node, ast.alias))
    found, imported = [], {name for alias in aliases for name in _bound_names(alias)}
    for statement in _statements_before(tree.body, _current_line(main)):
        part = _part_with_change(statement, {name: vars(main).get(name) for name in imported})
        if part is not None:
            found.append((part.lineno, ast.unparse(part).partition("\n")[0]))
    return found


def assigned_attributes() -> list[tuple[str, str]]:
    """Returns the attributes of modules and classes from outside of the standard library that a script assigns that
    workers import, also in functions and under its guard: the module, and the name in it.

    Alternative considered: compare all functions of the libraries that the script names. Rejected because PyTorch alone
    has thousands of classes and functions.
    """
    main = sys.modules["__main__"]
    if not is_imported() or (tree := tree_of(main)) is None:
        return []
    found = []
    for target in _assigned_attributes(tree):
        owner = _value(target.value, vars(main))
        if isinstance(owner, ModuleType) and _is_other(owner):
            found.append((owner.__name__, target.attr))
        elif isinstance(owner, type) and _is_other(owner):
            found.append((owner.__module__, f"{owner.__qualname__}.{target.attr}"))
    return found


def imports(module: ModuleType) -> frozenset[str]:
    """Returns what the import statements of a module name: modules, and perhaps other objects in them."""
    tree = tree_of(module)
    return frozenset() if tree is None else _imports(tree)


def tree_of(module: ModuleType) -> ast.Module | None:
    """Returns the syntax tree of a module that has a source file."""
    path = _path_of(module)
    return None if path is None else _parse(path)


def blocks_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Returns the blocks in a compound statement, without those of classes and functions, and those under a guard."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for name in ("body", "orelse", "finalbody"):
        if not (name == "body" and _is_guard(statement)):
            yield getattr(statement, name, [])
    yield from (handler.body for handler in getattr(statement, "handlers", []))


def _path_of(module: ModuleType) -> str | None:
    path = getattr(module, "__file__", None)
    return None if path is None else os.path.normpath(os.path.join(multiprocessing.process.ORIGINAL_DIR or "", path))


@functools.cache
def _parse(path: str) -> ast.Module | None:
    try:
        # Python has warned of what the source has when it compiled it.
        with tokenize.open(path) as file, warnings.catch_warnings(action="ignore"):
            return ast.parse(file.read())
    except Exception:
        # There is no such file, as for `<stdin>`, or it is not a source file.
        return None


def _is_main_of_package(main: ModuleType) -> bool:
    return _name_of(main).rpartition(".")[2] == "__main__"


def _name_of(main: ModuleType) -> str:
    """Returns the name of the module that `python -m` runs; empty for any other program."""
    return getattr(getattr(main, "__spec__", None), "name", None) or ""


@functools.cache
def _assigned_attributes(tree: ast.Module) -> list[ast.Attribute]:
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    return [target for node in statements for target in node.targets if isinstance(target, ast.Attribute)]


@functools.cache
def _imports(tree: ast.Module) -> frozenset[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return frozenset(found)


@functools.cache
def _has_guard(tree: ast.Module) -> bool:
    return any(map(_is_guard, tree.body))


def _is_guard(statement: ast.stmt) -> bool:
    """Returns whether a statement is ``if __name__ == "__main__":``, which may have further conditions."""
    if not isinstance(statement, ast.If):
        return False
    test = statement.test
    conditions = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(ast.unparse(each) in ("__name__ == '__main__'", "'__main__' == __name__") for each in conditions)


@functools.cache
def _names_under_guard(tree: ast.Module) -> frozenset[str]:
    under, outside = set(), set()
    for statement in tree.body:
        is_guard = _is_guard(statement)
        for part in statement.body if is_guard else [statement]:
            (under if is_guard else outside).update(_bound_names(part))
        if is_guard:
            outside.update(name for part in statement.orelse for name in _bound_names(part))
    return frozenset(under - outside)


@functools.cache
def _names_of_import(tree: ast.Module) -> frozenset[str]:
    others = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    found = set()
    for statement in tree.body:
        is_guard = _is_guard(statement)
        for part in statement.body if is_guard else ():
            others.update(_bound_names(part))
        for part in statement.orelse if is_guard else [statement]:
            is_definition = isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            found.update([part.name] if is_definition else _bound_names(part))
    return frozenset(found - others)


def _bound_names(part: ast.AST) -> Iterator[str]:
    for node in ast.walk(part):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]


def _current_line(main: ModuleType) -> int | None:
    """Returns the line of the script that main runs; ``None`` if another thread runs it."""
    frame, line = sys._getframe(), None
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            line = frame.f_lineno
        frame = frame.f_back
    return line


def _statements_before(block: list[ast.stmt], line: int | None) -> Iterator[ast.stmt]:
    """Returns the statements of a block, and of the blocks in it, that end before a line."""
    for statement in block:
        if line is None or statement.end_lineno < line:
            yield statement
        for inner in blocks_of(statement):
            yield from _statements_before(inner, line)


def _part_with_change(statement: ast.stmt, imported: dict[str, Any]) -> ast.expr | ast.stmt | None:
    """Returns the part of a statement that changes another module, if there is one."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return statement if any(_is_of_other_module(target, imported) for target in targets) else None
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return next((each for each in statement.decorator_list if _registers(each, imported)), None)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return statement if _registers(statement.value, imported) else None
    return None


def _is_of_other_module(target: ast.expr, imported: dict[str, Any]) -> bool:
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
        owner = _value(target.value.value, imported)
        return isinstance(owner, ModuleType) and is_own(owner.__name__)
    owner = _value(target.value, imported) if isinstance(target, ast.Attribute) else None
    return isinstance(owner, (ModuleType, type)) and _is_other(owner)


def _registers(call: ast.expr, imported: dict[str, Any]) -> bool:
    function = call
    while isinstance(function, ast.Call):
        function = function.func
    name, owner = ast.unparse(function).rpartition(".")[2], function
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    value = imported.get(owner.id) if isinstance(owner, ast.Name) else None
    return value is not None and name.startswith(_REGISTERING) and _is_other(value)


def _is_other(value: Any) -> bool:
    """Returns whether a value is a module from outside of the standard library, or is of one. PyTorch's settings of GPU
    libraries change no samples."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if not isinstance(name, str):
        name = type(value).__module__
    return not is_standard(name) and name not in NAMES and not name.startswith("torch.backends")


def is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def is_own(name: str) -> bool:
    """Returns whether an imported module is one of the user: a source file that is no part of Python or of an installed
    package."""
    return has_file(name) and _is_own_file(name, sys.modules[name].__spec__.origin)


# Main asks about all modules for each iterator.
@functools.cache
def _is_own_file(name: str, path: str) -> bool:
    if not path.endswith(".py"):
        return False
    is_of_python = is_standard(name) or os.path.dirname(path) == os.path.dirname(os.__file__)
    is_of_package = not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))
    return not (is_of_python or is_of_package or name.partition(".")[0] == PACKAGE)


def _value(node: ast.expr, imported: dict[str, Any]) -> Any:
    """Returns the module or the class that an expression names, without running code; ``None`` if it names none."""
    found = None
    if isinstance(node, ast.Name):
        found = imported.get(node.id)
    elif isinstance(node, ast.Attribute) and (owner := _value(node.value, imported)) is not None:
        found = vars(owner).get(node.attr)
    # `isinstance` would ask a proxy for its class, and so might make the object.
    return found if issubclass(type(found), (ModuleType, type)) and is_executed(found) else None
