"""The default collation without PyTorch: batches of NumPy arrays, which a worker stacks directly into the slot.

The structure of a batch is the one that PyTorch gives, with arrays in place of tensors.
"""

import array
import copy
import pickle
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy

from .. import _native
from .._pickling import _batch_pickle

_Stack = Callable[[list[numpy.ndarray]], numpy.ndarray]

#: PyTorch's message.
_REFUSED = "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {}"


def default_collate(batch: Sequence[Any]) -> Any:
    """Makes a batch of samples, as ``torch.utils.data.default_collate`` does, with NumPy arrays in place of tensors.

    Arrays and NumPy's numbers are stacked. Python's numbers become an array of ``bool``, ``int64`` or ``float64``.
    Texts and bytes stay a list. Dictionaries, lists, tuples and named tuples are collated element by element.

    Raises:
        TypeError: If samples have another type.
        RuntimeError: If the shapes of arrays or the lengths of lists differ.
    """
    return _collated(batch, _stack)


def default_convert(sample: Any) -> Any:
    """Returns a sample as it is given without automatic batching: unchanged, except that tuples become lists, as in
    PyTorch."""
    if isinstance(sample, Mapping):
        return _like(sample, {key: default_convert(sample[key]) for key in sample})
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*map(default_convert, sample))
    if isinstance(sample, Sequence) and not isinstance(sample, (str, bytes)):
        return _like(sample, [default_convert(value) for value in sample])
    return sample


def in_worker(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the function that a worker calls in place of ``collate_fn``."""
    return _collate_into_slot if collate_fn is default_collate else collate_fn


def prepare_worker() -> None:
    """Does nothing: ``default_collate`` needs no preparation."""


def _collate_into_slot(batch: Sequence[Any]) -> Any:
    return _collated(batch, _stack_into_slot)


def _collated(batch: Sequence[Any], stack: _Stack) -> Any:
    first = batch[0]
    if isinstance(first, numpy.ndarray):
        arrays = [numpy.asarray(value) for value in batch]
        for value in arrays:
            if value.dtype.kind in "SUO":
                raise TypeError(_REFUSED.format(value.dtype))
        return stack(arrays)
    if isinstance(first, (int, float, numpy.bool_, numpy.number)):
        return _numbers(batch)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _like(first, {key: _collated([sample[key] for sample in batch], stack) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_collated(column, stack) for column in zip(*batch, strict=False)))
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        return _like(first, [_collated(column, stack) for column in zip(*batch, strict=True)])
    raise TypeError(_REFUSED.format(type(first)))


def _like(model: Mapping | Sequence, values: dict[Any, Any] | list[Any]) -> Any:
    """Returns the values in a container of the type of ``model``, and in a plain one if the type does not allow it."""
    if isinstance(model, tuple):
        return values
    try:
        if isinstance(model, (MutableMapping, MutableSequence)):
            # The user's container may have attributes, which a copy keeps.
            container = copy.copy(model)
            for key, value in values.items() if isinstance(values, dict) else enumerate(values):
                container[key] = value
            return container
        return type(model)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _numbers(batch: Sequence[Any]) -> numpy.ndarray:
    if all(isinstance(value, (numpy.bool_, numpy.number)) for value in batch):
        return numpy.array(batch)
    # `array` raises TypeError for what is not a number, and OverflowError for integers of more than 64 bits.
    if all(isinstance(value, (bool, numpy.bool_)) for value in batch):
        return numpy.array(batch, dtype=bool)
    kind = "d" if any(isinstance(value, (float, numpy.floating)) for value in batch) else "l"
    return numpy.array(array.array(kind, batch))


def _stack(batch: list[numpy.ndarray], out: numpy.ndarray | None = None) -> numpy.ndarray:
    shape = batch[0].shape
    for number, value in enumerate(batch):
        if value.shape != shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(shape)} at entry 0"
                f" and {list(value.shape)} at entry {number}"
            )
    return numpy.stack(batch, out=out)


def _stack_into_slot(batch: list[numpy.ndarray]) -> numpy.ndarray:
    first = batch[0]
    size = len(batch) * first.nbytes
    # NumPy converts arrays of different dtypes to a common one, and another byte order to the machine's.
    is_plain = first.dtype.isnative and not first.dtype.hasobject and all(value.dtype == first.dtype for value in batch)
    if size == 0 or not is_plain:
        return _stack(batch)
    memory = _native.allocate(size)
    out = _stack(batch, numpy.frombuffer(memory, first.dtype).reshape(len(batch), *first.shape))
    _batch_pickle.in_slot[out.ctypes.data] = memory
    return out


def _reduce(value: numpy.ndarray) -> Any:
    memory = _batch_pickle.in_slot.pop(value.ctypes.data, None) if _batch_pickle.in_slot else None
    if memory is None or not value.flags.c_contiguous or len(memory) != value.nbytes:
        return NotImplemented
    return _array, (pickle.PickleBuffer(memory), value.dtype, value.shape)


def _array(memory: Any, dtype: numpy.dtype, shape: tuple[int, ...]) -> numpy.ndarray:
    return numpy.frombuffer(memory, dtype).reshape(shape)


_batch_pickle.reducers[numpy.ndarray] = _reduce
