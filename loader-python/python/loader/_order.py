"""The order of an epoch: the batches that PyTorch's sampler gives, as the numbers that the engine's tasks carry."""

from collections.abc import Generator, Iterable, Iterator
from typing import Any

from . import _native


class Order:
    """The batches of an epoch, as the engine asks for them. Subclasses make numbers of the sampler's keys.

    Args:
        sampler: Gives batches of keys, or keys without automatic batching.
        auto_collation: True if samples are batched.
    """

    def __init__(self, sampler: Iterable[Any], auto_collation: bool) -> None:
        self._sampler = sampler
        self._auto_collation = auto_collation
        self._begun: Iterator[Any] | None = None
        #: Number of batches that the sampler has given in this epoch, and whether there are more.
        self.given = 0
        self.is_exhausted = False
        #: True if it keeps keys, which :meth:`free` frees.
        self.has_keys = False

    def set_begun(self, begun: Iterator[Any]) -> None:
        """Sets the iterator over the sampler for the next epoch."""
        self._begun = begun

    def begin(self, _epoch: int) -> Generator[list[int] | _native.Numbers, bool | None]:
        """Begins an epoch. A resumed loader may find that the epoch was over, and begins the next one. ``send(True)`` leaves a batch
        out, and returns an empty list.
        """
        items, self._begun = self._begun or iter(self._sampler), None
        self._begin_epoch()
        self.given, self.is_exhausted = 0, False
        is_left_out: bool | None = False
        for item in items:
            self.given += 1
            is_left_out = yield [] if is_left_out else self._numbers(item if self._auto_collation else [item])
        self.is_exhausted = True

    def free(self, first: int) -> None:
        """Called when the program has got all batches before number ``first``."""

    def _begin_epoch(self) -> None:
        """Called before the first batch of an epoch."""

    def _numbers(self, batch: Iterable[Any]) -> list[int] | _native.Numbers:
        """Returns a number for each key of a batch."""
        raise NotImplementedError
