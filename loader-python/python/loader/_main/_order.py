"""The order of an epoch: the batches that the sampler gives, as the numbers that the engine's tasks carry. The engine
draws the batches in main."""

import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from types import NoneType
from typing import Any

from .. import _native
from .._data import _keys
from .._rust._rust_dataset import position


class Order:
    """Gives the engine the batches of an epoch. The subclasses make numbers of the sampler's keys.

    Args:
        sampler: Gives batches of keys, or keys without automatic batching.
        auto_collation: True if samples are batched.
    """

    def __init__(self, sampler: Iterable[Any], auto_collation: bool) -> None:
        self._sampler = sampler
        self._auto_collation = auto_collation
        self._iterator: Iterator[Any] | None = None
        self._skipped: Iterable[list[int]] = ()
        self._is_at_end = False
        self._capture_state: Callable[[], Any] | None = None
        self._has_loaded_state = False
        #: Number of batches that the sampler has given in this epoch, and the first of them.
        self.drawn = 0
        #: True if the epoch has keys that :meth:`free` must free.
        self.has_keys = False
        self.first_batch: list[int] = []
        #: A hash of the keys of the first batch, if they are not plain integers and can be hashed.
        self.first_keys_hash: str | None = None
        #: Captures the generators before the sampler gives the first batch, which may be after the start of the epoch.
        self.capture_generators: Callable[[], Any] | None = None
        #: What ``capture_generators`` has returned.
        self.generators: Any = None
        #: The states of a stateful sampler, by the number of batches that it had given. Main removes the states that it
        #: does not need.
        self.sampler_states: dict[int, Any] = {}

    def set_iterator(
        self, iterator: Iterator[Any], capture_state: Callable[[], Any] | None = None, has_loaded_state: bool = False
    ) -> None:
        """Sets the iterator over the sampler for the next epoch. ``capture_state`` returns the state of a stateful
        sampler. ``has_loaded_state`` is true if the sampler has loaded a state."""
        self._iterator, self._skipped, self._is_at_end = iterator, (), False
        self._capture_state, self._has_loaded_state = capture_state, has_loaded_state
        self.generators, self.drawn = None, 0

    def sampler_state(self, drawn: int) -> Any:
        """Returns the state of a stateful sampler after it has given ``drawn`` batches of this epoch."""
        if self._iterator is not None and self._capture_state is not None:
            # The sampler has not been asked for the first batch.
            return self._capture_state()
        return self.sampler_states.get(drawn)

    def skip(self, first: list[int], drawn: int, is_at_end: bool) -> None:
        """Puts ``drawn`` placeholders before the batches of the sampler, which has loaded its state after them. The
        engine skips them, and compares only the first batch with its state. ``is_at_end``: the sampler had no more
        batches. It is not asked for one, because it would begin again."""
        self._is_at_end = is_at_end
        self._skipped = itertools.islice(itertools.chain([first], itertools.repeat([0])), drawn)

    def begin(self, _epoch: int) -> Generator[list[int] | _native.Numbers, bool | None]:
        """Gives the batches of an epoch. ``send(True)`` draws a batch from the sampler, and returns an empty list in
        its place."""
        items, self._iterator = self._iterator or iter(self._sampler), None
        self._begin_epoch()
        if self.capture_generators is not None:
            self.generators = self.capture_generators()
        self.drawn, self.first_batch, self.sampler_states = 0, [], {}
        is_left_out: bool | None = False
        for batch in self._skipped:
            self._count(batch)
            is_left_out = yield batch
        if self._capture_state is not None:
            self.sampler_states[self.drawn] = self._capture_state()
        if self._is_at_end:
            return
        if self._has_loaded_state and self.drawn == 0:
            # Until torchdata's `StatefulDistributedSampler` gives its first index, its state is the end of the epoch
            # before, after which it gives no batch.
            first = list(itertools.islice(items, 1))
            items = itertools.chain(first, items) if first else iter(self._sampler)
        for item in items:
            batch = [] if is_left_out else self._numbers(item if self._auto_collation else [item])
            self._count(batch)
            if self._capture_state is not None:
                self.sampler_states[self.drawn] = self._capture_state()
            is_left_out = yield batch

    def _count(self, batch: list[int] | _native.Numbers) -> None:
        if self.drawn == 0:
            self.first_batch = batch if isinstance(batch, list) else batch.tolist()
        self.drawn += 1

    def free(self, before: int) -> None:
        """Called when the program has got all batches before number ``before``."""

    def _begin_epoch(self) -> None:
        """Called before the first batch of an epoch."""

    def _numbers(self, batch: Iterable[Any]) -> list[int] | _native.Numbers:
        """Returns a number for each key of a batch."""
        raise NotImplementedError


class KeyOrder(Order):
    """The batches of a dataset of Python objects."""

    def __init__(self, sampler: Iterable[Any], auto_collation: bool, keys: _keys.KeyFile | _keys.KeyList) -> None:
        super().__init__(sampler, auto_collation)
        self._keys = keys
        self._epoch = 0

    def begin(self, epoch: int) -> Generator[list[int] | _native.Numbers, bool | None]:
        self._epoch = epoch
        return super().begin(epoch)

    def free(self, before: int) -> None:
        self._keys.free(before)

    def _begin_epoch(self) -> None:
        self._keys.begin(self._epoch)
        self.has_keys, self.first_keys_hash = False, None

    def _numbers(self, batch: Iterable[Any]) -> list[int] | _native.Numbers:
        batch = batch if type(batch) is list else list(batch)
        plain = _native.plain_numbers(batch, _keys.FIRST_NUMBER)
        if plain is not None:
            return plain
        self.has_keys = True
        if self.drawn == 0:
            self.first_keys_hash = _hash_of(batch)
        return self._keys.add(self.drawn, batch)


class IndexOrder(Order):
    """The batches of a map-style Rust dataset, and of subsets of it."""

    def __init__(self, sampler: Iterable[Any], auto_collation: bool, samples: int, subsets: list[Any]) -> None:
        super().__init__(sampler, auto_collation)
        self._samples = samples
        self._subsets = subsets

    def _numbers(self, batch: Iterable[Any]) -> list[int]:
        return [self._index(key) for key in batch]

    def _index(self, key: Any) -> int:
        for indices in reversed(self._subsets):
            key = indices[key]
        if type(key) is int and 0 <= key < self._samples:
            return key
        return position(key, self._samples)


def _hash_of(keys: list[Any]) -> str | None:
    """Returns a hash of keys that is the same in each process; ``None`` if ``repr`` of a key may differ between
    processes."""

    def is_simple(key: Any) -> bool:
        if isinstance(key, (tuple, list)):
            return all(map(is_simple, key))
        return isinstance(key, (str, bytes, int, float, NoneType)) or type(key).__module__ == "numpy"

    if not is_simple(keys):
        return None
    return hashlib.blake2b(repr(keys).encode(errors="surrogatepass"), digest_size=16).hexdigest()
