"""The pickle of a batch, which a worker writes and main reads, and the content of keys and samples.

A worker pickles a batch, and copies the bytes of its arrays into the slot. The default collation has stacked its arrays
in the slot already. `_collate_torch` and `_collate_numpy` have the default collations.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

from .. import _native
from . import _by_value

#: The memory of the arrays that the default collation has stacked in the slot of the current batch, by address.
in_slot: dict[int, _native.Memory] = {}

#: The function that pickles the values of a type, so that their bytes stay outside the pickle. It returns what
#: ``__reduce__`` returns.
reducers: dict[type, Callable[[Any], Any]] = {}


def encode(batch: Any) -> tuple[bytes, list[Any]]:
    """Returns a pickle of a batch, and the objects whose bytes belong to it, in order."""
    file, buffers = io.BytesIO(), []
    try:
        try:
            _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(batch)
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            # The batch may have objects of local classes, or of classes that main has sent by value.
            try:
                pickler = _cloud_pickler(_by_value.batch_pickler())
            except ImportError:
                raise problem from None
            file, buffers = io.BytesIO(), []
            pickler(file, protocol=5, buffer_callback=buffers.append).dump(batch)
        return file.getvalue(), [_bytes_of(buffer) for buffer in buffers]
    finally:
        in_slot.clear()


def dumps(value: Any, needs_main: bool, sent: _by_value.SentObjects) -> bytes:
    """Returns a pickle with arrays in it. If an array is a view, the pickle has only the elements of the view. If
    cloudpickle is installed and ``needs_main`` is false, the pickle has the classes and functions of the script by
    value, because then no worker imports the script, except those of ``sent`` that the workers have already."""
    try:
        pickled, problem = _dumps(_Pickler, value), None
    except Exception as error:
        pickled, problem = b"", error
    if problem is None and (needs_main or b"__main__" not in pickled):
        return pickled
    try:
        return _dumps(_cloud_pickler(sent.key_pickler()), value)
    except ImportError:
        if problem is not None:
            raise problem from None
        return pickled


def _dumps(pickler: type, value: Any) -> bytes:
    file = io.BytesIO()
    pickler(file, protocol=5).dump(value)
    return file.getvalue()


def content(value: Any) -> list[Any]:
    """Returns the bytes that make up the content of a sample or a key, the same ones in each process."""
    file, buffers = io.BytesIO(), []
    _ContentPickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return [file.getvalue(), *(buffer.raw() for buffer in buffers)]


def decode(pickled: Any, arrays: list[Any]) -> Any:
    """Makes a batch of its pickle and the memory of its arrays. The arrays are views of that memory."""
    return pickle.loads(pickled, buffers=arrays)


def _bytes_of(buffer: pickle.PickleBuffer) -> Any:
    """Returns the ``Memory`` of a buffer in the slot, and releases the buffer; for any other buffer, returns its
    bytes."""
    with memoryview(buffer) as view:
        shown = view.obj
    if isinstance(shown, _native.Memory):
        buffer.release()
        return shown
    # `raw` returns bytes whatever type the elements have.
    return buffer.raw()


def _reduce(value: Any) -> Any:
    reducer = reducers.get(type(value))
    return NotImplemented if reducer is None else reducer(value)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _reduce(value)


class _ContentPickler(_Pickler):
    """Pickles only the names of classes and functions, because those of the script have another module in a worker."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _by_value.TYPES_BY_VALUE) and value is not str:
            return str, (getattr(value, "__name__", ""),)
        return super().reducer_override(value)


def _cloud_pickler(base: type) -> type:
    class CloudPickler(base):
        def reducer_override(self, value: Any) -> Any:
            reduced = _reduce(value)
            return super().reducer_override(value) if reduced is NotImplemented else reduced

    return CloudPickler
