"""The samples of an iterable dataset in one process, and the position in them. The fetcher makes them, and the engine
reads them."""

import contextlib
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from . import _generators
from ._stateful import is_stateful, pickle_position, restore_starts, states_in, stream_starts


class Items:
    """The samples of an iterable dataset, and the position in them.

    A dataset or its iterator may have ``state_dict`` and ``load_state_dict``, as with torchdata's
    ``StatefulDataLoader``. For any other dataset, the position is the number of samples, and the process reads the
    samples before the position again and drops them. It restores the generators first, so a dataset that shuffles gives
    the same samples again.

    Args:
        dataset: The dataset.
        position: What :meth:`snapshot` has returned, as an object; ``None`` at the beginning.
        generators: What :meth:`generators` has returned; ``None`` to leave the generators as they are.
        is_local: True in main, where the program draws from the same generators.
        has_loaded_end: True if the dataset has loaded a state from the end of an epoch, and has not begun since.
    """

    def __init__(
        self,
        dataset: Any,
        position: dict[str, Any] | None,
        generators: bytes | None = None,
        is_local: bool = False,
        has_loaded_end: bool = False,
    ) -> None:
        self._dataset = dataset
        self._count = 0
        self._is_over = False
        #: Called at the end.
        self.at_end: Callable[[Items], None] | None = None
        #: The streams of Hugging Face in the dataset, with the positions at which their next epochs begin.
        self._starts = [(stream, None) for stream, _ in stream_starts(dataset)] if has_loaded_end else []
        position = position or {}
        if states := states_in(position):
            self._generators: list[dict[str, Any]] = []
            self._count = position["count"]
            self._restore(states)
        else:
            saved = pickle.loads(generators) if generators is not None else []
            self._generators = saved or [_generators.capture()]
            with _generators.kept(*saved) if saved and is_local else contextlib.nullcontext():
                self._begin(position.get("count", 0), saved)
        # Many datasets begin at the position that they have loaded, and there are no samples after the end of an epoch.
        # A state from before the first sample may be such a position too, because a generator function begins late.
        self._may_be_at_end = self._count == 0 and (has_loaded_end or bool(states))
        #: True if the dataset or its iterator has a state of its own.
        self.is_stateful = is_stateful(self._items) or is_stateful(self._dataset)
        # The program may draw before it asks for the first sample, and a generator function begins only then.
        self._captures_first = is_local and self._count == 0

    def _restore(self, states: dict[str, Any]) -> None:
        dataset = self._dataset
        self._starts = stream_starts(dataset)
        if "dataset" in states:
            dataset.load_state_dict(states["dataset"])
        self._items: Iterator[Any] = iter(dataset)
        if "iterator" in states:
            self._items.load_state_dict(states["iterator"])  # type: ignore[attr-defined]

    def _begin(self, count: int, saved: list[dict[str, Any]]) -> None:
        """Begins, and drops the first ``count`` samples."""
        for generators in saved[:1]:
            _generators.restore(generators)
        self._items = iter(self._dataset)
        for generators in saved[1:]:
            _generators.restore(generators)
        self._count = count
        next(itertools.islice(self._items, count, count), None)

    def generators(self) -> bytes | None:
        """Returns the states of the generators from before ``iter``, and without workers from before the first sample
        too; ``None`` if the dataset or its iterator has a state of its own."""
        return None if self.is_stateful else pickle.dumps(self._generators, protocol=5)

    def __next__(self) -> Any:
        if self._captures_first:
            self._captures_first = False
            self._generators[1:] = [_generators.capture()]
        try:
            item = self._take()
        except StopIteration:
            if not self._is_over:
                self._is_over = True
                if self.at_end is not None:
                    self.at_end(self)
            raise
        self._count += 1
        return item

    def _take(self) -> Any:
        may_be_at_end, self._may_be_at_end = self._may_be_at_end, False
        try:
            item = next(self._items)
        except StopIteration:
            restore_starts(self._starts)
            if not may_be_at_end:
                raise
            self._items = iter(self._dataset)
            return next(self._items)
        if any(stream is self._dataset for stream, _ in self._starts):
            # Its iterator has begun, and needs the position that it has loaded no more.
            restore_starts(self._starts)
        return item

    def snapshot(self) -> bytes:
        """Returns the position after the sample that was taken last."""
        position = {"count": self._count, "is_over": self._is_over}
        return pickle_position(position, self._states) if self.is_stateful else pickle.dumps(position, protocol=5)

    def _states(self) -> dict[str, Any]:
        states = {}
        if is_stateful(self._items):
            states["iterator"] = self._items.state_dict()  # type: ignore[attr-defined]
        if is_stateful(self._dataset) and self._items is not self._dataset:
            states["dataset"] = self._dataset.state_dict()
        return states


