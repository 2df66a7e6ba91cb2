"""The fetcher: a dataset that is open in one process, with its collation function. The engine calls it in each worker,
and in main without workers."""

import functools
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _epoch_log, _generators, _keys
from ._items import Items
from ._stateful import dataset_state, is_stateful, restore_between


class Fetcher:
    """Loads samples and makes batches of them, when the engine calls it.

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
        self._worker = 0
        self._epoch_log: int | None = None
        self._is_persistent = False
        self._sends_state = False
        #: Without workers: the generators with which the dataset was begun in the run that is resumed.
        self.saved_generators: bytes | None = None
        #: True once the dataset has loaded a state from the end of an epoch, until its next epoch begins.
        self.has_loaded_end = False
        self._begun_items: Items | None = None
        self._items: Items | None = None
        # True in a worker that has not begun an epoch.
        self._is_new = True
        # As in PyTorch, the attribute may exist and be false.
        self.has_many = auto_collation and bool(getattr(dataset, "__getitems__", None))

    def get(self, number: int, epoch: int, seed: int | None) -> Any:
        """Returns the sample of a key. With a seed, it is loaded with random numbers that depend on the seed alone."""
        key = number if number < _keys.FIRST_NUMBER else self._keys.get(number, epoch)
        if seed is None:
            return self.dataset[key]
        if number >= _keys.FIRST_NUMBER:
            seed = _generators.mixed_seed(seed, key)
        with _generators.seeded(seed, self.is_local):
            return self.dataset[key]

    def get_many(self, numbers: list[int], epoch: int, seed: int | None) -> Any:
        """Returns the samples of the keys of a batch. With a seed there is one key, as with :meth:`get`."""
        keys = [number if number < _keys.FIRST_NUMBER else self._keys.get(number, epoch) for number in numbers]
        if seed is None:
            samples = self.dataset.__getitems__(keys)
        else:
            if numbers[0] >= _keys.FIRST_NUMBER:
                seed = _generators.mixed_seed(seed, keys[0])
            with _generators.seeded(seed, self.is_local):
                samples = self.dataset.__getitems__(keys)
        if type(samples) is list and len(samples) == len(keys):
            return samples
        if seed is not None:
            raise _not_a_list_error("seed_samples=True", samples, "set seed_samples=False")
        # PyTorch calls `collate_fn` with any other object as it is. The engine needs one sample for each key.
        return [_WholeBatch(samples), *keys[1:]]

    def set_worker(self, worker: int, is_map: bool, epoch_log: int | None, is_persistent: bool) -> None:
        """Says which worker this process is. The worker sends the state of a map-style dataset with each batch. It
        writes entries about an iterable dataset into the epoch log whose descriptor is ``epoch_log``."""
        self._worker, self._epoch_log, self._is_persistent = worker, epoch_log, is_persistent
        self._sends_state = is_map and is_stateful(self.dataset)

    def begin(self) -> None:
        """Begins the samples of an iterable dataset, which the next :meth:`iterate` takes over."""
        self._begun_items = self._begun_items or self._make_items(None, None)

    def iterate(self, epoch: int, snapshot: bytes | None) -> Items:
        """Begins the samples of an iterable dataset in an epoch, after a position that :meth:`Items.snapshot` has
        returned."""
        begun, self._begun_items = self._begun_items, None
        if snapshot is None and begun is None and self._is_new and self._epoch_log is not None:
            # There is no position of this epoch that has the state of the dataset.
            self.restore(_epoch_log.find_last_state(self._epoch_log, self._worker, epoch))
        self._is_new = False
        if snapshot is not None or begun is None:
            begun = self._begin_items(epoch, pickle.loads(snapshot) if snapshot is not None else None)
        begun.at_end = functools.partial(self._log_last_state, epoch)
        self._items = begun
        return begun

    def _begin_items(self, epoch: int, position: dict[str, Any] | None) -> Items:
        if self._epoch_log is None:
            saved, self.saved_generators = self.saved_generators, None
            return self._make_items(position, saved)
        saved = _epoch_log.find_generators(self._epoch_log, self._worker, epoch)
        items = self._make_items(position, saved)
        if saved is None and (generators := items.generators()) is not None:
            _epoch_log.append(self._epoch_log, _epoch_log.GENERATORS, self._worker, epoch, generators)
        return items

    def _make_items(self, position: dict[str, Any] | None, generators: bytes | None) -> Items:
        has_loaded_end, self.has_loaded_end = self.has_loaded_end, False
        return Items(self.dataset, position, generators, self.is_local, has_loaded_end)

    def _log_last_state(self, epoch: int, items: Items) -> None:
        if self._epoch_log is not None and self._is_persistent and items.is_stateful:
            _epoch_log.append(self._epoch_log, _epoch_log.LAST_STATE, self._worker, epoch, items.snapshot())

    def generators(self) -> bytes | None:
        """Without workers: returns :meth:`Items.generators` of the samples that were begun last."""
        items = self._begun_items or self._items
        return None if items is None else items.generators()

    def snapshot(self) -> bytes | None:
        """Returns the state of the dataset in this process, for :meth:`restore`; ``None`` if it has none."""
        items = self._begun_items or self._items
        return dataset_state(self.dataset) if items is None else items.snapshot()

    def restore(self, snapshot: bytes | None) -> None:
        """Gives the dataset a state that :meth:`snapshot` has returned in another process."""
        if snapshot is None:
            return
        position = pickle.loads(snapshot)
        if position["is_over"]:
            restore_between(self.dataset, position)
            self.has_loaded_end = True
        else:
            saved, self.saved_generators = self.saved_generators, None
            self._begun_items = self._make_items(position, saved)

    def collate(self, samples: list[Any]) -> Any:
        """Makes a batch."""
        if samples and type(samples[0]) is _WholeBatch:
            if any(type(sample) is _WholeBatch for sample in samples[1:]):
                # The engine has called `__getitems__` with one key at a time, to find a bad sample.
                raise _not_a_list_error("on_bad_sample", samples[0].samples, "leave on_bad_sample out")
            batch = self._collate_fn(samples[0].samples)
        else:
            batch = self._collate_fn(samples if self._auto_collation else samples[0])
        if self._sends_state and (state := dataset_state(self.dataset)) is not None:
            return BatchWithState(batch, self._worker, state)
        return batch


class BatchWithState(NamedTuple):
    """A batch of a worker, with the state of its map-style dataset after the batch."""

    batch: Any
    worker: int
    state: bytes


class _WholeBatch:
    """What ``__getitems__`` has returned, if it is not a list with one sample for each key. It has the place of the
    first sample."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples


def _not_a_list_error(option: str, returned: Any, remedy: str) -> TypeError:
    return TypeError(
        f"with {option}, __getitems__ must return a list with one sample for each key, and it has returned"
        f" {type(returned).__qualname__}: return such a list, or {remedy}"
    )
