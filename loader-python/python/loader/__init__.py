"""A replacement for PyTorch's ``DataLoader`` whose worker processes are replaced when they die.

Change ``from torch.utils.data import DataLoader`` to ``from loader import DataLoader``. The arguments, the order, the
random numbers, the warnings and the exceptions are the same. The loader replaces a worker that dies, and loads its
batches again.

Importing this package imports neither PyTorch nor NumPy. Using one of its names imports the module that has the name.
"""

import importlib
import sys
from typing import TYPE_CHECKING

if "t" in sys.abiflags:
    raise ImportError(
        "the package `process-loader` does not support free-threaded Python (a build with Py_GIL_DISABLED): its"
        " extension uses Python's stable interface, which this build does not have; use the same version of Python with"
        " the GIL"
    )

if TYPE_CHECKING:
    from ._main._base import default_collate as default_collate
    from ._main._dataloader import DataLoader as DataLoader
    from ._rust._rust_dataset import (
        Padded as Padded,
        RustDataset as RustDataset,
        RustStream as RustStream,
        dataset as dataset,
    )
    from ._rust._rust_loader import RustLoader as RustLoader, from_config as from_config
    from ._worker_info import WorkerInfo as WorkerInfo, get_worker_info as get_worker_info
    from .datasets import (
        Arrays as Arrays,
        Arrow as Arrow,
        ArrowStream as ArrowStream,
        AudioFiles as AudioFiles,
        AudioFolder as AudioFolder,
        AudioTable as AudioTable,
        Cached as Cached,
        Csv as Csv,
        CsvStream as CsvStream,
        ImageFolder as ImageFolder,
        ImageTable as ImageTable,
        IndexedTar as IndexedTar,
        JsonLines as JsonLines,
        JsonLinesStream as JsonLinesStream,
        Mix as Mix,
        Packed as Packed,
        Parquet as Parquet,
        ParquetStream as ParquetStream,
        Tar as Tar,
        TextLines as TextLines,
        TextLinesStream as TextLinesStream,
        Tokens as Tokens,
    )

_DATASETS = (
    "Arrays Arrow ArrowStream AudioFiles AudioFolder AudioTable Cached Csv CsvStream ImageFolder ImageTable IndexedTar"
    " JsonLines JsonLinesStream Mix Packed Parquet ParquetStream Tar TextLines TextLinesStream Tokens"
).split()
_RUST = "Padded RustDataset RustStream dataset".split()
_MODULES = {
    **dict.fromkeys(_DATASETS, "datasets"),
    **dict.fromkeys(_RUST, "_rust._rust_dataset"),
    "DataLoader": "_main._dataloader",
    "RustLoader": "_rust._rust_loader",
    "WorkerInfo": "_worker_info",
    "default_collate": "_main._base",
    "from_config": "_rust._rust_loader",
    "get_worker_info": "_worker_info",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str):
    if name in ("datasets", "transforms"):
        return importlib.import_module(f"{__name__}.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
