"""A dataset that is open in this process, with the functions that turn its samples into batches."""

from collections.abc import Callable, Iterator
from typing import Any

from . import _keys


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
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._auto_collation = auto_collation
        self._keys = keys
        self.encode = encode
        self.is_local = encode is None
        # As in PyTorch, the method may be there and false.
        self.has_many = auto_collation and bool(getattr(dataset, "__getitems__", None))

    def get(self, number: int) -> Any:
        """Returns the sample of a key."""
        return self._dataset[number if number < _keys.FIRST else self._keys[number]]

    def get_many(self, numbers: list[int]) -> Any:
        """Returns the samples of the keys of a batch."""
        keys = [number if number < _keys.FIRST else self._keys[number] for number in numbers]
        return self._dataset.__getitems__(keys)

    def iterate(self, _shard: int) -> Iterator[Any]:
        """Begins the samples of an iterable dataset."""
        return iter(self._dataset)

    def collate(self, samples: list[Any]) -> Any:
        """Makes a batch."""
        return self._collate_fn(samples if self._auto_collation else samples[0])
