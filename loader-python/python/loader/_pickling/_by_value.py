"""The classes and functions that main sends to the workers by value, with cloudpickle.

A worker makes copies of them. When it pickles a batch, it writes a reference to main's object instead of the copy: a
class by value would set the attributes of main's class to those of the copy, and a function by value would arrive as
another function, with globals of its own. Main writes references too, in keys, to what it has sent with the dataset.
"""

import copyreg
import functools
import gc
import itertools
import pickle
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from .. import _worker_info
from .._program import _script

_LRU_CACHE_TYPE = type(functools.cache(lambda: None))
_SINGLE_DISPATCH = functools.singledispatch(lambda _: None)
#: The types of the objects that are sent by value.
TYPES_BY_VALUE = (type, FunctionType, _LRU_CACHE_TYPE)

_numbers = itertools.count()
#: In main: the objects that it has sent, by number. A `SentObjects` holds the strong references.
_sent: WeakValueDictionary[int, Any] = WeakValueDictionary()
#: In main: the numbers of these objects, which are the same for all loaders.
_number_of: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
#: In a worker: the number of each copy.
_received: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
#: In a worker: the copies that have come with the dataset, by number. Keys refer also to those that the dataset no
#: longer needs.
_of_dataset: dict[int, Any] = {}
_has_dataset = False
#: The classes that :func:`_class_at` has found, by address.
_found: WeakValueDictionary[int, type] = WeakValueDictionary()
#: In a worker: what :func:`_is_in_main` has returned for each class.
_exists_in_main: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


class SentObjects:
    """The objects that main has sent by value to the workers of a loader. Main must keep it until the last batch has
    arrived."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._in_dataset: set[Any] = set()

    def clear(self) -> None:
        """Forgets the objects. cloudpickle has failed, so the workers get nothing by value."""
        self._numbers.clear()
        self._in_dataset.clear()

    def dataset_pickler(self) -> type:
        """Returns the class of the pickler for the dataset."""
        # The class is in a cycle of references, which must not keep what the program drops.
        sent = weakref.proxy(self)

        def reduce(value: Any, by_value: Callable[[Any], Any]) -> Any:
            if _script.workers_have(value):
                return NotImplemented
            reduced = sent._register(value, by_value(value))
            if value in sent._numbers:
                sent._in_dataset.add(value)
            return reduced

        return _pickler(reduce)

    def key_pickler(self) -> type:
        """Returns the class of the pickler for keys."""
        sent = weakref.proxy(self)

        def reduce(value: Any, by_value: Callable[[Any], Any]) -> Any:
            if value in sent._in_dataset:
                return _copy_in_worker, (sent._numbers[value],)
            if _script.workers_have(value):
                return NotImplemented
            reduced = by_value(value)
            # A function may be made for one key, so main must not keep it.
            return sent._register(value, reduced) if isinstance(value, type) else reduced

        return _pickler(reduce)

    def _register(self, value: Any, reduced: Any) -> Any:
        # cloudpickle returns `NotImplemented` for an object that can be imported, so that `pickle` writes a
        # reference. For types such as that of `None` it returns two items, without a state.
        if not isinstance(reduced, tuple) or len(reduced) == 2:
            return reduced
        if value not in self._numbers:
            number = _number_of.get(value)
            if number is None:
                number = _number_of[value] = next(_numbers)
                _sent[number] = value
            self._numbers[value] = number
        make, arguments, *state = reduced
        return _rebuild_copy, (self._numbers[value], make, *arguments), *state


class ReferencePickler(pickle.Pickler):
    """A pickler that refers to classes and functions by their names, as `pickle` does. It raises
    :class:`NotInWorkers` at the first one of the script that workers do not have, so main pickles most datasets once.

    Alternative considered: search the pickle for the names that workers do not have. Rejected because a dataset has
    strings, attributes and file names that are equal to short names of the script.
    """

    dispatch_table = copyreg.dispatch_table

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        # `isinstance` would take a proxy for the function that it calls. A class whose metaclass is in this table is
        # pickled by the function that the program has registered.
        is_named = issubclass(kind, (*TYPES_BY_VALUE, TypeVar)) and kind not in copyreg.dispatch_table
        # A function that `exec` has made may have no module, and then `pickle` looks for it in the script too.
        is_of_script = is_named and getattr(value, "__module__", None) in (*_script.NAMES, None)
        if is_of_script and not _script.workers_have(value):
            raise NotInWorkers(f"workers do not have a {kind.__name__} of the script")
        return NotImplemented


class NotInWorkers(Exception):
    """The value that is pickled needs a class or a function of the script that workers do not have."""


class NoSentObjects(SentObjects):
    """What main has sent to workers that are forks of it, which is nothing: they have main's classes."""

    def key_pickler(self) -> type:
        def reduce(value: Any, by_value: Callable[[Any], Any]) -> Any:
            is_local = isinstance(value, type) and not _script.is_in_its_module(value)
            return _reference(value) if is_local else by_value(value)

        return _pickler(reduce)


def batch_pickler() -> type:
    """Returns the class of the pickler for batches, in a worker."""

    def reduce(value: Any, by_value: Callable[[Any], Any]) -> Any:
        if (number := _received.get(value)) is not None:
            return _original_in_main, (number,)
        # A fork of main has the script's module, so main finds there what the name says.
        if _script.is_in_its_module(value):
            return NotImplemented
        return _reference(value) if isinstance(value, type) and _is_in_main(value) else by_value(value)

    return _pickler(reduce)


def _is_in_main(value: type) -> bool:
    """Returns whether main has a class of a worker too, because it existed when the template was forked from main."""
    if not _worker_info.is_fork:
        return False
    if value not in _exists_in_main:
        # The collector does not list what was frozen at the fork.
        _exists_in_main[value] = not any(found is value for found in gc.get_objects())
    return _exists_in_main[value]


def _reference(value: type) -> Any:
    """Refers to a class that a fork of main and main have at the same address."""
    return _class_at, (id(value), value.__module__, value.__qualname__)


def _class_at(address: int, module: str, name: str) -> type:
    found = _found.get(address)
    if found is None or (found.__module__, found.__qualname__) != (module, name):
        found = _found[address] = _search_class(address, module, name)
    return found


def _search_class(address: int, module: str, name: str) -> type:
    """Looks at all classes of the process, which takes milliseconds."""
    classes, seen = [object], set()
    while classes:
        found = classes.pop()
        if id(found) == address and (found.__module__, found.__qualname__) == (module, name):
            return found
        # The method of `type` needs its class as an argument.
        for subclass in type.__subclasses__(found):
            if id(subclass) not in seen:
                seen.add(id(subclass))
                classes.append(subclass)
    raise pickle.PicklingError(
        f"the class {module}.{name} was made after the workers had been forked, or exists in one process no longer: define"
        " it at the top level of a module"
    )


def end_dataset() -> None:
    """Called when a worker has received the dataset. Copies that come later, with keys, are not kept."""
    global _has_dataset
    _has_dataset = True


def _pickler(reduce: Callable[[Any, Callable[[Any], Any]], Any]) -> type:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, TYPES_BY_VALUE):
                return reduce(value, self._by_value)
            if isinstance(value, CodeType):
                # cloudpickle replaces the name of the file, so tracebacks would have no lines of the script.
                make, arguments = super().dispatch_table[CodeType](value)
                return _rebuild_code, (value.co_filename, make, *arguments)
            if type(value) is functools.cached_property:
                # In Python 3.11 and older it has a lock, which cannot be pickled.
                return _rebuild_cached_property, (value.func, value.attrname)
            return super().reducer_override(value)

        def _by_value(self, value: Any) -> Any:
            if isinstance(value, _LRU_CACHE_TYPE):
                return _reduce_cached(value)
            reduced = super().reducer_override(value)
            if reduced is not NotImplemented and _is_single_dispatch(value):
                return _reduce_single_dispatch(value)
            if isinstance(value, FunctionType) and isinstance(reduced, tuple) and len(reduced) == 6:
                return _with_globals_of_module(value, reduced)
            return reduced

    return Pickler


class _Globals(NamedTuple):
    """Stands for the globals of the functions of a module, in main and in a worker."""

    module: str

    def __reduce__(self) -> Any:
        return _script.globals_of, (self.module,)


def _with_globals_of_module(function: FunctionType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Lets a function that is sent by value, such as a local one, share its globals with the other functions of its
    module, which workers import. cloudpickle would give it copies: it would set globals that the others do not read. Of
    a script, the worker gets main's values of the names that the import of the script does not bind. Main gets no
    values of a worker."""
    module = function.__globals__.get("__name__")
    if not isinstance(module, str) or not _script.workers_import(module, function.__globals__):
        return reduced
    make, (code, _, *others), (attributes, slots), *rest = reduced
    is_main = module in _script.NAMES and not _worker_info.is_worker
    names = _script.names_not_imported() if is_main else frozenset()
    kept = {name: value for name, value in slots["__globals__"].items() if name in names}
    return make, (code, _Globals(module), *others), (attributes, slots | {"__globals__": kept}), *rest


def _reduce_cached(function: Any) -> Any:
    """Sends a function with `functools.lru_cache` by value if no worker can import it, because cloudpickle refers to
    it by name. The cache is empty in the worker."""
    if getattr(function, "__module__", None) != "__main__" and _script.is_in_its_module(function):
        return NotImplemented
    return _rebuild_cached, (function.cache_parameters(), function.__wrapped__), function.__dict__


def _rebuild_cached(parameters: dict[str, Any], function: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


def _is_single_dispatch(value: Any) -> bool:
    """Returns whether `functools.singledispatch` has made the function."""
    return isinstance(value, FunctionType) and value.__code__ is _SINGLE_DISPATCH.__code__


def _reduce_single_dispatch(function: Any) -> Any:
    # Its cache has weak references, which cannot be pickled.
    made = vars(_SINGLE_DISPATCH)
    attributes = {name: value for name, value in vars(function).items() if name not in made}
    return _rebuild_single_dispatch, (dict(function.registry),), attributes


def _rebuild_single_dispatch(registry: dict[type, Any]) -> Any:
    function = functools.singledispatch(registry.pop(object))
    for argument, implementation in registry.items():
        function.register(argument, implementation)
    return function


def _rebuild_cached_property(function: Any, name: str | None) -> Any:
    cached = functools.cached_property(function)
    cached.attrname = name
    return cached


def _rebuild_code(file: str, make: Callable[..., Any], *arguments: Any) -> Any:
    return make(*arguments).replace(co_filename=file)


def _rebuild_copy(number: int, make: Callable[..., Any], *arguments: Any) -> Any:
    copy = make(*arguments)
    _received[copy] = number
    if not _has_dataset:
        # A recursive function is rebuilt twice, and the first copy is the one that stays.
        _of_dataset.setdefault(number, copy)
    return copy


def _copy_in_worker(number: int) -> Any:
    return _of_dataset[number]


def _original_in_main(number: int) -> Any:
    return _sent[number]
