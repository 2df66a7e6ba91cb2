"""The classes of PyTorch that ``DataLoader`` and its iterator extend, for use where PyTorch is not installed. Random
numbers come from NumPy.

The loader checks its arguments in PyTorch's order, and raises PyTorch's exceptions with PyTorch's messages.
"""

import itertools
import multiprocessing
import os
import warnings
from multiprocessing.context import BaseContext
from typing import Any, Generic, TypeVar

from numpy.random import Generator

from .._data import _collate_numpy
from ._samplers_numpy import BatchSampler, RandomSampler, SequentialSampler, draw_seed

_Batch = TypeVar("_Batch", covariant=True)

#: Attributes that the program cannot set after the loader was made.
_FIXED_ATTRIBUTES = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class _DatasetKind:
    Map = 0
    Iterable = 1


class DataLoader(Generic[_Batch]):
    """A loader with checked arguments, its sampler and its collation function. The subclass makes the iterator."""

    _is_initialized = False

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        shuffle: bool | None,
        sampler: Any,
        batch_sampler: Any,
        num_workers: int,
        collate_fn: Any,
        pin_memory: bool,
        drop_last: bool,
        timeout: float,
        worker_init_fn: Any,
        multiprocessing_context: Any,
        generator: Generator | None,
        *,
        prefetch_factor: int | None,
        persistent_workers: bool,
        pin_memory_device: str,
        in_order: bool,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers > 0 and prefetch_factor is None else prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        is_iterable = hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
        self._dataset_kind = _DatasetKind.Iterable if is_iterable else _DatasetKind.Map
        _check_order(is_iterable, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if generator is not None and not isinstance(generator, Generator):
            raise TypeError(
                f"without PyTorch, generator must be a numpy.random.Generator or None, but is {generator!r}"
            )
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        if sampler is None and is_iterable:
            sampler = itertools.repeat(None)
        elif sampler is None:
            sampler = RandomSampler(dataset, generator) if shuffle else SequentialSampler(dataset)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.generator = generator
        if collate_fn is None:
            collate_fn = _collate_numpy.default_collate if self._auto_collation else _collate_numpy.default_convert
        self.collate_fn = collate_fn
        self.persistent_workers = persistent_workers
        self._is_initialized = True
        self._IterableDataset_len_called: int | None = None
        self._iterator: Any = None
        self.check_worker_number_rationality()

    def _get_iterator(self) -> "_BaseDataLoaderIter":
        raise NotImplementedError

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        return self._multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: BaseContext | str | None) -> None:
        if context is not None and self.num_workers == 0:
            raise ValueError(
                "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got"
                " num_workers=0"
            )
        if isinstance(context, str):
            methods = multiprocessing.get_all_start_methods()
            if context not in methods:
                raise ValueError(
                    f"multiprocessing_context option should specify a valid start method in {methods!r}, but got"
                    f" multiprocessing_context={context!r}"
                )
            context = multiprocessing.get_context(context)
        if context is not None and not isinstance(context, BaseContext):
            raise TypeError(
                "multiprocessing_context option should be a valid context object or a string specifying the start"
                f" method, but got multiprocessing_context={context}"
            )
        self._multiprocessing_context = context

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_initialized and name in _FIXED_ATTRIBUTES:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def __iter__(self) -> "_BaseDataLoaderIter":
        if not self.persistent_workers or self.num_workers == 0:
            return self._get_iterator()
        if self._iterator is None:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def __len__(self) -> int:
        if self._dataset_kind == _DatasetKind.Map:
            return len(self._index_sampler)
        length = self._IterableDataset_len_called = len(self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)

    def check_worker_number_rationality(self) -> None:
        """Warns if there are more workers than CPUs."""
        cpus = len(os.sched_getaffinity(0))
        if self.num_workers > cpus:
            warnings.warn(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our suggested max number of"
                f" worker in current system is {cpus}, which is smaller than what this DataLoader is going to create."
                " Please be aware that excessive worker creation might get DataLoader running slow or even freeze,"
                " lower the worker number to avoid potential slowness/freeze if necessary.",
                stacklevel=2,
            )


class _BaseDataLoaderIter:
    """An iterator that counts its batches. The subclass gets each batch from the engine."""

    def __init__(self, loader: DataLoader) -> None:
        self._dataset = loader.dataset
        self._dataset_kind = loader._dataset_kind
        self._auto_collation = loader._auto_collation
        self._index_sampler = loader._index_sampler
        self._num_workers = loader.num_workers
        self._timeout = loader.timeout
        self._collate_fn = loader.collate_fn
        self._pin_memory, self._pin_memory_device = False, None
        if loader.pin_memory:
            warnings.warn(
                "'pin_memory' argument is set as true but PyTorch is not installed, then device pinned memory won't be"
                " used.",
                stacklevel=2,
            )
        _BaseDataLoaderIter._reset(self, loader)
        self._base_seed = draw_seed(loader.generator)

    def __iter__(self) -> "_BaseDataLoaderIter":
        return self

    def _reset(self, loader: DataLoader, first_iter: bool = False) -> None:
        self._sampler_iter = iter(self._index_sampler)
        self._num_yielded = 0
        self._IterableDataset_len_called = loader._IterableDataset_len_called

    def _next_data(self) -> Any:
        raise NotImplementedError

    def __next__(self) -> Any:
        batch = self._next_data()
        self._num_yielded += 1
        length = self._IterableDataset_len_called
        if self._dataset_kind == _DatasetKind.Iterable and length is not None and self._num_yielded > length:
            advice = (
                "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset"
                " replica at each worker. Please see"
                " https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
            )
            warnings.warn(
                f"Length of IterableDataset {self._dataset} was reported to be {length}(when accessing"
                f" len(dataloader)), but {self._num_yielded} samples have been fetched."
                f" {advice if self._num_workers > 0 else ''}",
                stacklevel=2,
            )
        return batch

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __getstate__(self) -> Any:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)


def _check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    if num_workers < 0:
        raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable multiprocessing.")
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if prefetch_factor is not None and num_workers == 0:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 to enable"
            " multiprocessing, otherwise set prefetch_factor to None."
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_order(
    is_iterable: bool, batch_size: int | None, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    if is_iterable:
        for name, value in (("shuffle", shuffle or None), ("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}"
                )
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
    elif batch_size is None and drop_last:
        raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")
