"""The default collation with PyTorch, which in a worker stacks tensors directly in the slot, and the pickles of tensors
in a batch."""

import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data._utils import collate as _torch_collate

from .. import _native
from .._pickling import _batch_pickle
from .._pickling._tensors import is_plain

#: The functions of PyTorch's collation.
_TORCH_FUNCTIONS = [value for value in vars(_torch_collate).values() if isinstance(value, types.FunctionType)]


def default_collate(batch: list[Any]) -> Any:
    """Collates as ``torch.utils.data.default_collate``."""
    return _torch_collate.default_collate(batch)


def in_worker(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the function that a worker calls in place of ``collate_fn``."""
    return _collate_into_slot if collate_fn in (default_collate, _torch_collate.default_collate) else collate_fn


def prepare_worker() -> None:
    """Changes ``torch.utils.data.default_collate`` for user code that calls it in a worker: PyTorch would allocate
    shared memory of its own there. The worker copies such a batch into the slot. A function that the user has put in
    the place of PyTorch's stays."""
    functions = _torch_collate.default_collate_fn_map
    if functions.get(torch.Tensor) is _torch_collate.collate_tensor_fn:
        functions[torch.Tensor] = _stack


def _collate_into_slot(batch: list[Any]) -> Any:
    # If collation calls user code, that code may keep the stacked tensors after the slot has another batch.
    if not (_has_pytorchs_functions() and _is_built_in(batch[0])):
        return _torch_collate.default_collate(batch)
    functions = {**_torch_collate.default_collate_fn_map, torch.Tensor: _stack_into_slot}
    return _torch_collate.collate(batch, collate_fn_map=functions)


def _has_pytorchs_functions() -> bool:
    """Returns whether the user has neither added a function to PyTorch's collation nor replaced one."""
    functions = _torch_collate.default_collate_fn_map.values()
    # By identity: a function of the user may have the module and the name of PyTorch's, by `functools.wraps`.
    return all(function is _stack or any(function is each for each in _TORCH_FUNCTIONS) for function in functions)


def _is_built_in(sample: Any) -> bool:
    """Returns whether all containers in the sample have built-in types, so that PyTorch's collation calls no user
    code."""
    kind = type(sample)
    if kind is dict:
        return all(map(_is_built_in, sample.values()))
    if kind in (list, tuple) or (kind.__bases__ == (tuple,) and hasattr(kind, "_fields")):
        return all(map(_is_built_in, sample))
    return kind in (str, bytes) or not isinstance(sample, (Mapping, Sequence))


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    if not is_plain(batch[0]):
        return _torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)


def _stack_into_slot(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    size = len(batch) * first.numel() * first.element_size()
    # `torch.stack` gives tensors of different dtypes a common dtype, but converts them to the dtype of `out`.
    if size == 0 or not is_plain(first) or any(getattr(value, "dtype", None) != first.dtype for value in batch):
        return _stack(batch, collate_fn_map=collate_fn_map)
    memory = _native.allocate(size)
    # NumPy's array, unlike `torch.frombuffer`, keeps the buffer exported, so that `Memory` knows of the tensor.
    out = torch.from_numpy(numpy.frombuffer(memory, numpy.uint8)).view(first.dtype).view(len(batch), *first.shape)
    torch.stack(batch, 0, out=out)
    _batch_pickle.in_slot[out.data_ptr()] = memory
    return out


def _reduce(value: torch.Tensor) -> Any:
    if not is_plain(value):
        return NotImplemented
    # `pop`, because a slot's memory is sent once: a second tensor with the same bytes is copied.
    memory = _batch_pickle.in_slot.pop(value.data_ptr(), None)
    if memory is None or not value.is_contiguous() or len(memory) != value.numel() * value.element_size():
        value, stored = _stored(value)
        # The stride of a dimension of one element is any number, which `reshape` would keep.
        memory = stored.as_strided((stored.numel(),), (1,)).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(memory), value.dtype, tuple(value.shape), value.stride())


def _stored(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a tensor, and a contiguous tensor with each of its elements once, in the order of the memory. An expanded
    tensor has fewer elements in memory than its shape says. A tensor with gaps between its elements is copied without
    the gaps."""
    if value.is_contiguous():
        return value, value
    stored = value
    for dimension, stride in enumerate(value.stride()):
        if stride == 0:
            stored = stored.narrow(dimension, 0, 1)
    stored = stored.permute(sorted(range(value.dim()), key=value.stride, reverse=True))
    if stored.is_contiguous():
        return value, stored
    value = value.contiguous()
    return value, value


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    if len(memory) == 0:
        return torch.empty_strided(shape, stride, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)


def _reduce_array(value: numpy.ndarray) -> Any:
    # The program may change each array of a batch, also one that is read-only in the worker.
    return NotImplemented if value.flags.writeable or value.dtype.hasobject else value.copy("K").__reduce_ex__(5)


_batch_pickle.reducers[torch.Tensor] = _reduce
_batch_pickle.reducers[numpy.ndarray] = _reduce_array
