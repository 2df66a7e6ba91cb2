"""The classes that `DataLoader` and its iterator extend: PyTorch's if PyTorch is installed, and otherwise those of
`_base_numpy`.

Workers do not import this module. Main tells them whether PyTorch is installed.
"""

from typing import Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    from numpy.random import Generator

    from .._data._collate_numpy import default_collate, default_convert
    from ._base_numpy import DataLoader, _BaseDataLoaderIter, _DatasetKind

    has_torch = False
    default_collations: tuple[Any, ...] = (default_collate, default_convert)
    data_pipes: tuple[type, ...] = ()

    def default_dtype() -> Any:
        return None

    def pin_memory(batch: Any, _device: str | None) -> Any:
        return batch

    def generator_state(generator: Generator) -> Any:
        return generator.bit_generator.state

    def set_generator_state(generator: Generator, state: Any) -> None:
        generator.bit_generator.state = state

else:
    from torch import Generator
    from torch.utils.data import DataLoader, _utils
    from torch.utils.data.dataloader import (
        IterDataPipe,
        MapDataPipe,
        _BaseDataLoaderIter,
        _DatasetKind,
        _sharding_worker_init_fn as sharding_worker_init_fn,
    )
    from torch.utils.data.graph_settings import apply_sharding

    from .._data._collate_torch import default_collate

    has_torch = True
    # What a loader has without `collate_fn`.
    default_collations = (default_collate, _utils.collate.default_collate, _utils.collate.default_convert)
    data_pipes = (IterDataPipe, MapDataPipe)
    default_dtype = torch.get_default_dtype
    pin_memory = _utils.pin_memory.pin_memory

    def generator_state(generator: Generator) -> Any:
        return generator.get_state().numpy().tobytes()

    def set_generator_state(generator: Generator, state: Any) -> None:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


__all__ = ["DataLoader", "Generator", "default_collate"]
