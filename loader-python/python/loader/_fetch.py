"""A dataset that is open in this process, with the functions that turn its samples into batches."""

import contextlib
import functools
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import _epoch_notes, _errors, _keys, _seeds


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
        self._worker = 0
        self._notes: str | None = None
        self._is_persistent = False
        self._sends_state = False
        #: Without workers: the generators with which the dataset was begun in the run that is resumed.
        self.saved_generators: bytes | None = None
        self._begun: Items | None = None
        self._items: Items | None = None
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
        """Returns the samples of the keys of a batch. With a seed there is one key, as with :meth:`get`."""
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
        if seed is not None:
            raise TypeError(
                "with seed_samples=True, __getitems__ must return a list with one sample for each key, and it has returned"
                f" {type(samples).__qualname__}: return such a list, or set seed_samples=False"
            )
        # PyTorch gives whatever it is to `collate_fn`. The engine wants a sample per key.
        return [_Whole(samples), *keys[1:]]

    def join(self, worker: int, is_map: bool, notes: str | None, is_persistent: bool) -> None:
        """Called in a worker. The state of a map-style dataset goes with each batch. What concerns an epoch of an iterable
        dataset goes into the file ``notes``."""
        self._worker, self._notes, self._is_persistent = worker, notes, is_persistent
        self._sends_state = is_map and is_stateful(self.dataset)

    def begin(self) -> None:
        """Begins the samples of an iterable dataset, which the next :meth:`iterate` takes over."""
        self._begun = self._begun or Items(self.dataset, None, None, self.is_local)

    def iterate(self, epoch: int, snapshot: bytes | None) -> "Items":
        """Begins the samples of an iterable dataset in an epoch, after a position that :meth:`Items.snapshot` has returned."""
        begun, self._begun = self._begun, None
        if snapshot is not None or begun is None:
            begun = self._items_of(epoch, pickle.loads(snapshot) if snapshot is not None else None)
        begun.at_end = functools.partial(self._note_end, epoch)
        self._items = begun
        return begun

    def _items_of(self, epoch: int, position: dict[str, Any] | None) -> "Items":
        if self._notes is None:
            saved, self.saved_generators = self.saved_generators, None
            return Items(self.dataset, position, saved, self.is_local)
        saved = _epoch_notes.find_generators(self._notes, self._worker, epoch)
        items = Items(self.dataset, position, saved, self.is_local)
        if saved is None and (generators := items.generators()) is not None:
            _epoch_notes.append(self._notes, _epoch_notes.GENERATORS, self._worker, epoch, generators)
        return items

    def _note_end(self, epoch: int, items: "Items") -> None:
        if self._notes is not None and self._is_persistent and items.is_stateful:
            _epoch_notes.append(self._notes, _epoch_notes.LAST_STATE, self._worker, epoch, items.snapshot())

    def generators(self) -> bytes | None:
        """Without workers: returns :meth:`Items.generators` of the samples that were begun last."""
        items = self._begun or self._items
        return None if items is None else items.generators()

    def snapshot(self) -> bytes | None:
        """Returns the state of the dataset in this process, for :meth:`restore`; ``None`` if it has none."""
        items = self._begun or self._items
        return dataset_state(self.dataset) if items is None else items.snapshot()

    def restore(self, snapshot: bytes | None) -> None:
        """Gives the dataset a state that :meth:`snapshot` has returned in another process."""
        if snapshot is None:
            return
        position = pickle.loads(snapshot)
        if position["is_over"]:
            restore_between(self.dataset, position)
        else:
            saved, self.saved_generators = self.saved_generators, None
            self._begun = Items(self.dataset, position, saved, self.is_local)

    def collate(self, samples: list[Any]) -> Any:
        """Makes a batch."""
        if samples and type(samples[0]) is _Whole:
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


def pickled(position: dict[str, Any], states: Callable[[], dict[str, Any]]) -> bytes:
    """Pickles a position with the states of the user's objects. If a state cannot be had, the position has the error instead,
    which :meth:`DataLoader.state_dict` raises: PyTorch's loader never asks for states, so a batch must not fail for it.

    The states are a pickle in the pickle, so that main can read the position without the user's classes."""
    try:
        position["states"] = pickle.dumps(states(), protocol=5)
    except Exception as error:
        position["error"] = _errors.describe(error)
    return pickle.dumps(position, protocol=5)


def dataset_state(dataset: Any) -> bytes | None:
    """Returns the state of a dataset between two epochs, for :meth:`Fetcher.restore`; ``None`` if it has none."""
    return pickled({"is_over": True}, lambda: {"dataset": dataset.state_dict()}) if is_stateful(dataset) else None


def restore_between(dataset: Any, position: dict[str, Any]) -> None:
    """Gives a dataset a state of the end of an epoch, or before the first one."""
    states = states_of(position)
    if "dataset" in states:
        dataset.load_state_dict(states["dataset"])
    elif "iterator" in states:
        # What the iterator's state changes besides the iterator, such as a generator, remains.
        iter(dataset).load_state_dict(states["iterator"])


def states_of(position: dict[str, Any]) -> dict[str, Any]:
    """Returns the states of the user's objects in a position."""
    return pickle.loads(position["states"]) if "states" in position else {}


class _Whole:
    """What ``__getitems__`` has returned, if it is not a list with a sample per key. Stands for the first sample."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples


class Items:
    """The samples of an iterable dataset, and the position in them.

    A dataset or its iterator may have ``state_dict`` and ``load_state_dict``, as with torchdata's ``StatefulDataLoader``. For any
    other, the position is the number of samples, and samples before it are read again and dropped. So that these are the same
    samples, also if the dataset shuffles, they are read with the generators with which they were read before.

    Args:
        dataset: The dataset.
        position: What :meth:`snapshot` has returned, as an object; ``None`` at the beginning.
        generators: What :meth:`generators` has returned; ``None`` if the generators are to stay as they are.
        is_local: True if the program draws from the same generators.
    """

    def __init__(
        self, dataset: Any, position: dict[str, Any] | None, generators: bytes | None = None, is_local: bool = False
    ) -> None:
        self._dataset = dataset
        self._count = 0
        self._is_over = False
        #: Called at the end.
        self.at_end: Callable[[Items], None] | None = None
        position = position or {}
        if states := states_of(position):
            self._generators: list[dict[str, Any]] = []
            self._restore(states)
            self._count = position["count"]
        else:
            saved = pickle.loads(generators) if generators is not None else []
            self._generators = saved or [_seeds.capture()]
            with _seeds.kept(*saved) if saved and is_local else contextlib.nullcontext():
                self._begin(position.get("count", 0), saved)
        #: True if the dataset or its iterator has a state of its own.
        self.is_stateful = is_stateful(self._items) or is_stateful(self._dataset)
        # The program may draw before it asks for the first sample, for which a generator function begins.
        self._notes_first = is_local and self._count == 0

    def _restore(self, states: dict[str, Any]) -> None:
        dataset = self._dataset
        start = getattr(dataset, "_starting_state_dict", _NOTHING)
        if "dataset" in states:
            dataset.load_state_dict(states["dataset"])
        self._items: Iterator[Any] = iter(dataset)
        if "dataset" in states and start is not _NOTHING:
            self._items = _with_start_again(self._items, dataset, start)
        if "iterator" in states:
            self._items.load_state_dict(states["iterator"])  # type: ignore[attr-defined]

    def _begin(self, count: int, saved: list[dict[str, Any]]) -> None:
        """Begins, and drops the first ``count`` samples."""
        for generators in saved[:1]:
            _seeds.restore(generators)
        self._items = iter(self._dataset)
        for generators in saved[1:]:
            _seeds.restore(generators)
        self._count = count
        next(itertools.islice(self._items, count, count), None)

    def generators(self) -> bytes | None:
        """Returns the states of the generators from before ``iter``, and without workers from before the first sample too;
        ``None`` if the dataset or its iterator has a state of its own."""
        return None if self.is_stateful else pickle.dumps(self._generators, protocol=5)

    def __next__(self) -> Any:
        if self._notes_first:
            self._notes_first = False
            self._generators[1:] = [_seeds.capture()]
        try:
            item = next(self._items)
        except StopIteration:
            if not self._is_over:
                self._is_over = True
                if self.at_end is not None:
                    self.at_end(self)
            raise
        self._count += 1
        return item

    def snapshot(self) -> bytes:
        """Returns the position after the sample that was taken last."""
        position = {"count": self._count, "is_over": self._is_over}
        return pickled(position, self._states) if self.is_stateful else pickle.dumps(position, protocol=5)

    def _states(self) -> dict[str, Any]:
        states = {}
        if is_stateful(self._items):
            states["iterator"] = self._items.state_dict()  # type: ignore[attr-defined]
        if is_stateful(self._dataset) and self._items is not self._dataset:
            states["dataset"] = self._dataset.state_dict()
        return states


_NOTHING = object()


def _with_start_again(items: Iterator[Any], dataset: Any, start: Any) -> Iterator[Any]:
    """Returns the items of a dataset of Hugging Face. It keeps a position that it was given, and would begin the next epochs there
    too."""
    first = next(items, _NOTHING)
    dataset._starting_state_dict = start
    if first is not _NOTHING:
        yield first
        yield from items


def is_stateful(value: Any) -> bool:
    """True if the object has a state from which it goes on without a loss."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not _has_shuffle_buffer(value)


def _has_shuffle_buffer(value: Any) -> bool:
    """True for a shuffled stream of Hugging Face. Its state does not have the rows in its buffer, which would be missing after a
    worker's death: it is read again instead."""
    parts = [getattr(value, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        parts += [getattr(part, "ex_iterable", None)] if hasattr(part, "ex_iterable") else getattr(part, "ex_iterables", [])
    return False
