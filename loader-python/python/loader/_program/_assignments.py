"""What the sources of the program say of a value that differs between main and a worker: whether the program has set
it, or has counted, measured or cached with it.

Alternative considered: follow the code of what main has pickled, and look only at the globals that it reads. Rejected
because a dataset may find its settings in ways that no syntax tree shows, such as `getattr` and registries.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _script

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Calls whose results are the same in each process.
_STABLE_CALLS = ("bool", "dict", "float", "int", "str", "tuple", "os.environ.get", "os.getenv")


class _Place(NamedTuple):
    """Where a value is in a module."""

    #: The class that has the variable as an attribute; empty for a variable of the module.
    owner: str
    variable: str
    #: Whether the variable is a dict or an instance, and the value is in it.
    is_inside: bool


def is_setting(module: str, key: str, is_missing: bool, is_first: bool) -> bool:
    """Returns whether a value that differs between main and a worker is one that the program has set.

    Args:
        key: The expression that names the value in the module.
        is_missing: Whether the worker has no value of this name.
        is_first: Whether this is the first comparison in the program. After it, the program may assign names that are
            not in capitals as it counts.
    """
    tree = _script.tree_of(sys.modules[module]) if module in sys.modules else None
    if tree is None:
        return False
    owner, name, is_inside = _place(vars(sys.modules[module]), key)
    by_functions = _assigned_by_functions(tree)
    if not is_first and (is_inside or name in by_functions or not name.isupper()):
        return False
    # Some variables of a script are used by its training loop only.
    is_variable = module == "__main__" and not owner and (is_inside or not name.isupper())
    if (is_variable and not _is_read_by_definitions(tree, name, key)) or by_functions.get(name, False):
        return False
    if is_missing:
        return name in by_functions and name in _globals_of_functions(tree)
    defaults = _defaults(tree, owner, name)
    if is_inside:
        if not defaults:
            return False  # The module has imported the variable, and another one has it too.
        trees = (tree, _script.tree_of(sys.modules["__main__"]))
        if set_by := [each for each in trees if each is not None and _assigns(each, key)]:
            return all(_is_only_set(each, key) for each in set_by)
    return all(map(_is_stable, defaults))


def _place(variables: dict[str, Any], key: str) -> _Place:
    first, *inner = re.split(r"[.\[]", key)
    if inner and issubclass(type(variables.get(first)), type):
        return _Place(first, inner[0], len(inner) > 1)
    return _Place("", first, bool(inner))


@functools.cache
def _assigned_by_functions(tree: ast.Module) -> dict[str, bool]:
    """Returns the names that functions assign, and whether one computes the value, for example to count: globals,
    attributes of other objects than ``self``, and dicts whose keys a function computes."""
    found: dict[str, bool] = {}
    for function in ast.walk(tree):
        if not isinstance(function, _FUNCTIONS):
            continue
        declared = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
        parameters = set(_parameters(function))
        given = {id(target) for target, value in _assignments(function) if _is_given(target, value, parameters)}
        for node in ast.walk(function):
            if isinstance(getattr(node, "ctx", None), ast.Store) and (name := _assigned_name(node, declared)):
                found[name] = found.get(name, False) or id(node) not in given
    return found


def _parameters(function: Any) -> Iterator[str]:
    given = function.args
    rest = (each for each in (given.vararg, given.kwarg) if each is not None)
    yield from (each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest))


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Returns the targets of all assignments in a part of a tree, and their values."""
    for part in ast.walk(node):
        if isinstance(part, ast.Assign):
            yield from ((target, part.value) for target in part.targets)
        elif isinstance(part, ast.AnnAssign) and part.value is not None:
            yield part.target, part.value


def _is_given(target: ast.expr, value: ast.expr, parameters: set[str]) -> bool:
    """Returns whether a function assigns one of its parameters, or to a name in capitals what it does not compute."""
    if isinstance(value, ast.Name) and value.id in parameters:
        return True
    name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
    return name.isupper() and _is_stable(value) and not _reads(value, ast.unparse(target))


def _reads(node: ast.AST, key: str) -> bool:
    parts = (each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)))
    return any(ast.unparse(each) == key for each in parts)


def _assigned_name(target: ast.AST, declared: set[str]) -> str | None:
    if isinstance(target, ast.Name):
        return target.id if target.id in declared else None
    of = target.value if isinstance(target, (ast.Attribute, ast.Subscript)) else None
    if isinstance(target, ast.Attribute):
        return None if isinstance(of, ast.Name) and of.id == "self" else target.attr
    return of.id if isinstance(of, ast.Name) and not isinstance(target.slice, ast.Constant) else None


def _is_read_by_definitions(tree: ast.Module, name: str, key: str) -> bool:
    """Returns whether a class or a function of a script reads a global, without those that assign ``key`` in it."""
    return any(key == name or not _assigns(node, key) for node in _readers(tree, name))


# The values of a dict, of which there may be hundreds, ask for the same name.
@functools.cache
def _readers(tree: ast.Module, name: str) -> list[ast.stmt]:
    definitions = (node for node in tree.body if isinstance(node, (*_FUNCTIONS, ast.ClassDef)))
    return [node for node in definitions if _reads_global(node, name)]


def _reads_global(node: ast.AST, name: str) -> bool:
    if isinstance(node, _FUNCTIONS):
        parts = list(ast.walk(node))
        stored = {each.id for each in parts if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        stored -= {each for part in parts if isinstance(part, ast.Global) for each in part.names}
        if name in stored or name in _parameters(node):
            return False
    if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
        return True
    return any(_reads_global(inner, name) for inner in ast.iter_child_nodes(node))


def _assigns(node: ast.AST, key: str) -> bool:
    """Returns whether a part of a tree assigns to an expression, or to that of an imported module."""
    return key in _assigned_expressions(node)


@functools.cache
def _assigned_expressions(node: ast.AST) -> frozenset[str]:
    """Returns the expressions that a part of a tree assigns to, also without the names of modules before them."""
    stored = (ast.unparse(each) for each in ast.walk(node) if isinstance(getattr(each, "ctx", None), ast.Store))
    parts = (text.split(".") for text in stored if not text.startswith("self."))
    return frozenset(".".join(each[first:]) for each in parts for first in range(len(each)))


def _is_only_set(tree: ast.Module, key: str) -> bool:
    """Returns whether all statements that assign to an expression set it, and none computes its value."""
    found = [(ast.unparse(target), value) for target, value in _assignments(tree) if _assigns(target, key)]
    changed = (each.target for each in ast.walk(tree) if isinstance(each, ast.AugAssign))
    is_computed = not found or any(_assigns(target, key) for target in changed)
    return not is_computed and all(_is_stable(value) and not _reads(value, name) for name, value in found)


def _globals_of_functions(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


@functools.cache
def _defaults(tree: ast.Module, owner: str, name: str) -> list[ast.expr]:
    """Returns what a module assigns to a variable of it or of a class in it, when it is imported."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner)
    scopes = [node.body for node in classes] if owner else [tree.body]
    return [each for scope in scopes for each in _assigned_values(scope, name)]


def _assigned_values(block: list[ast.stmt], name: str) -> Iterator[ast.expr]:
    """Returns what the statements of a block assign to a name, without those of functions, and those under a guard."""
    for statement in block:
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target)):
                yield statement.value
        for inner in _script.blocks_of(statement):
            yield from _assigned_values(inner, name)


def _is_stable(default: ast.expr) -> bool:
    """Returns whether a default is the same in each process that imports the module."""
    for node in ast.walk(default):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in _STABLE_CALLS:
            return False
        if isinstance(node, ast.Name) and node.id == "__name__":
            return False
    return True
