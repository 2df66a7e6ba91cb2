"""A dataset that is open in this process, with the functions that turn its samples into batches."""

import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from . import _keys, _seeds


class Fetcher:
    """What the engine calls to load: in a worker, or in main without workers.

    Args:
        dataset: The dataset, map-style or iterable.
        collate_fn: Turns the samples of a batch, or one sample without automatic batching, into what the user gets.
        auto_collation: True if samples are batched.
        keys: Finds the keys that are not plain integers.
        encode: Makes a pickle and a list of buffers of a batch; ``None`` in main, where batches stay as they are.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        auto_collation: bool,
        keys: _keys.KeyReader | _keys.KeyList,
        encode: Callable[[Any], tuple[bytes, list[Any]]] | None,
    ) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._auto_collation = auto_collation
        self._keys = keys
        self.encode = encode
        self.is_local = encode is None
        # As in PyTorch, the method may be there and false.
        self.has_many = auto_collation and bool(getattr(dataset, "__getitems__", None))

    def get(self, number: int, epoch: int, seed: int | None) -> Any:
        """Returns the sample of a key. With a seed, it is loaded with random numbers that depend on the seed alone."""
        key = number if number < _keys.FIRST else self._keys.get(number, epoch)
        if seed is None:
            return self.dataset[key]
        if number >= _keys.FIRST:
            seed = _seeds.mixed(seed, key)
        with _seeds.seeded(seed, self.is_local):
            return self.dataset[key]

    def get_many(self, numbers: list[int], epoch: int, seed: int | None) -> Any:
        """Returns the samples of the keys of a batch."""
        keys = [number if number < _keys.FIRST else self._keys.get(number, epoch) for number in numbers]
        if seed is None:
            samples = self.dataset.__getitems__(keys)
        else:
            if numbers[0] >= _keys.FIRST:
                seed = _seeds.mixed(seed, keys[0])
            with _seeds.seeded(seed, self.is_local):
                samples = self.dataset.__getitems__(keys)
        if type(samples) is list and len(samples) == len(keys):
            return samples
        # PyTorch gives whatever it is to `collate_fn`. The engine wants a sample per key.
        return [_Whole(samples), *keys[1:]]

    def iterate(self, snapshot: bytes | None) -> "Items":
        """Begins the samples of an iterable dataset, after a position that :meth:`Items.snapshot` has returned."""
        return Items(self.dataset, pickle.loads(snapshot) if snapshot is not None else None)

    def collate(self, samples: list[Any]) -> Any:
        """Makes a batch."""
        if samples and type(samples[0]) is _Whole:
            return self._collate_fn(samples[0].samples)
        return self._collate_fn(samples if self._auto_collation else samples[0])


class _Whole:
    """What ``__getitems__`` has returned, if it is not a list with a sample per key. Stands for the first sample."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples


class Items:
    """The samples of an iterable dataset, and the position in them.

    A dataset or its iterator may have ``state_dict`` and ``load_state_dict``, as with torchdata's ``StatefulDataLoader``. For any
    other, the position is the number of samples, and samples before it are read again and dropped.
    """

    def __init__(self, dataset: Any, position: dict[str, Any] | None) -> None:
        self._dataset = dataset
        self._count = 0
        position = position or {}
        start = getattr(dataset, "_starting_state_dict", _NOTHING)
        if "dataset" in position:
            dataset.load_state_dict(position["dataset"])
        self._items: Iterator[Any] = iter(dataset)
        if "dataset" in position and start is not _NOTHING:
            self._items = _with_start_again(self._items, dataset, start)
        if "iterator" in position:
            self._items.load_state_dict(position["iterator"])  # type: ignore[attr-defined]
        if position:
            self._count = position["count"]
            if "dataset" not in position and "iterator" not in position:
                # Drops the samples before the position.
                next(itertools.islice(self._items, self._count, self._count), None)

    def __next__(self) -> Any:
        item = next(self._items)
        self._count += 1
        return item

    def snapshot(self) -> bytes:
        """Returns the position after the sample that was taken last."""
        position: dict[str, Any] = {"count": self._count}
        if _is_stateful(self._items):
            position["iterator"] = self._items.state_dict()  # type: ignore[attr-defined]
        if _is_stateful(self._dataset) and self._items is not self._dataset:
            position["dataset"] = self._dataset.state_dict()
        try:
            return pickle.dumps(position, protocol=5)
        except Exception:
            # PyTorch's loader never asks for the state, so a state that cannot be sent must not fail the batch.
            return pickle.dumps({"count": self._count}, protocol=5)


_NOTHING = object()


def _with_start_again(items: Iterator[Any], dataset: Any, start: Any) -> Iterator[Any]:
    """Returns the items of a dataset of Hugging Face. It keeps a position that it was given, and would begin the next epochs there
    too."""
    first = next(items, _NOTHING)
    dataset._starting_state_dict = start
    if first is not _NOTHING:
        yield first
        yield from items


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
