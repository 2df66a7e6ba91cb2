"""The default collation with PyTorch, which in a worker stacks tensors directly into the slot, and how tensors are pickled."""

import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import collate as _torch

from . import _collate, _native

_torch_tensors = _torch.default_collate_fn_map[torch.Tensor]


def default_collate(batch: list[Any]) -> Any:
    """Collates as ``torch.utils.data.default_collate``."""
    return _torch.default_collate(batch)


def in_worker(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the function that a worker calls in place of ``collate_fn``."""
    return _collate_into_slot if collate_fn in (default_collate, _torch.default_collate) else collate_fn


def prepare_worker() -> None:
    """Keeps PyTorch from allocating shared memory of its own, which it does in a worker, when user code calls
    ``torch.utils.data.default_collate``. The batch is copied into the slot."""
    _torch.default_collate_fn_map[torch.Tensor] = _stack


def _collate_into_slot(batch: list[Any]) -> Any:
    # The user may have added types to the map.
    functions = {**_torch.default_collate_fn_map, torch.Tensor: _stack_into_slot}
    return _torch.collate(batch, collate_fn_map=functions)


def is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    if not is_plain(batch[0]):
        return _torch_tensors(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)


def _stack_into_slot(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    size = len(batch) * first.numel() * first.element_size()
    if size == 0 or not is_plain(first):
        return _stack(batch, collate_fn_map=collate_fn_map)
    memory = _native.allocate(size)
    out = torch.frombuffer(memory, dtype=first.dtype).view(len(batch), *first.shape)
    torch.stack(batch, 0, out=out)
    _collate.in_slot[out.data_ptr()] = memory
    return out


def _reduce(value: torch.Tensor) -> Any:
    if not is_plain(value):
        return NotImplemented
    memory = _collate.in_slot.get(value.data_ptr())
    if memory is None or not value.is_contiguous() or len(memory) != value.numel() * value.element_size():
        memory = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(memory), value.dtype, tuple(value.shape))


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if len(memory) == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


_collate.reducers[torch.Tensor] = _reduce
