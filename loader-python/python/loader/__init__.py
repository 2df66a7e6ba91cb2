"""PyTorch's ``DataLoader`` on worker processes that may die at any time.

``from loader import DataLoader`` takes the place of ``from torch.utils.data import DataLoader``: the same arguments, order,
random numbers, warnings and exceptions. Workers that die are replaced, and the epoch goes on unchanged.

Importing this package imports neither PyTorch nor NumPy. The names are loaded when they are used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._collate import default_collate as default_collate
    from ._dataloader import DataLoader as DataLoader
    from ._info import WorkerInfo as WorkerInfo, get_worker_info as get_worker_info

_PLACES = {
    "DataLoader": "_dataloader",
    "WorkerInfo": "_info",
    "default_collate": "_collate",
    "get_worker_info": "_info",
}

__all__ = sorted(_PLACES)


def __getattr__(name: str):
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
