"""The states of the user's datasets, iterators and samplers that have ``state_dict`` and ``load_state_dict``, in main
and in workers."""

import itertools
import pickle
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from .. import _errors

#: Number of levels of attributes, and of elements of a container, in which streams of Hugging Face are looked for.
_MAX_DEPTH, _MAX_ELEMENTS = 3, 64


def is_stateful(value: Any) -> bool:
    """Returns whether the object has a state from which it continues with each of its remaining samples."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not _has_shuffle_buffer(value)


def pickle_position(position: dict[str, Any], states: Callable[[], dict[str, Any]]) -> bytes:
    """Pickles a position with the states of the user's objects. If ``state_dict`` or the pickle fails, the position has
    the error in place of the states, and :meth:`DataLoader.state_dict` raises it. PyTorch's loader never calls
    ``state_dict``, so the error must not end a batch.

    The states are a pickle in the pickle, so that main can read the position without the user's classes."""
    try:
        position["states"] = pickle.dumps(states(), protocol=5)
    except Exception as error:
        position["error"] = _errors.describe(error)
    return pickle.dumps(position, protocol=5)


def dataset_state(dataset: Any) -> bytes | None:
    """Returns the state of a dataset between two epochs, for :meth:`Fetcher.restore`; ``None`` if it has none."""
    return (
        pickle_position({"is_over": True}, lambda: {"dataset": dataset.state_dict()}) if is_stateful(dataset) else None
    )


def restore_between(dataset: Any, position: dict[str, Any]) -> None:
    """Gives a dataset its state from between two epochs, or from before the first one."""
    states = states_in(position)
    if "dataset" in states:
        # A dataset around such a stream may go on with it in the next epoch.
        starts = [(stream, start) for stream, start in stream_starts(dataset) if stream is dataset]
        dataset.load_state_dict(states["dataset"])
        restore_starts(starts)
    elif "iterator" in states:
        # The iterator is dropped, but its state may change other objects, such as a generator, and these changes
        # remain.
        iter(dataset).load_state_dict(states["iterator"])


def states_in(position: dict[str, Any]) -> dict[str, Any]:
    """Returns the states of the user's objects in a position."""
    return pickle.loads(position["states"]) if "states" in position else {}


#: The position at which each stream of Hugging Face began before it loaded one, until :func:`restore_starts`.
_starts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def stream_starts(dataset: Any) -> list[tuple[Any, Any]]:
    """Returns the streams of Hugging Face in a dataset, each with the position at which it begins. Such a stream keeps
    the position that it has loaded, and would begin each later epoch there too."""
    streams = _streams_in(dataset, _MAX_DEPTH)
    return [(stream, _starts.setdefault(stream, stream._starting_state_dict)) for stream in streams]


def restore_starts(starts: list[tuple[Any, Any]]) -> None:
    """Makes the streams begin their next epochs where :func:`stream_starts` has said."""
    for stream, start in starts:
        stream._starting_state_dict = start
        _starts.pop(stream, None)


def _streams_in(value: Any, depth: int) -> Iterator[Any]:
    attributes = getattr(value, "__dict__", {})
    if "_starting_state_dict" in attributes:
        yield value
        return
    if depth == 0 or isinstance(value, (type, ModuleType)):
        return
    inner = [*attributes.values()]
    if isinstance(value, dict):
        inner += itertools.islice(value.values(), _MAX_ELEMENTS)
    elif isinstance(value, (list, tuple)):
        inner += value[:_MAX_ELEMENTS]
    for part in inner:
        yield from _streams_in(part, depth - 1)


def _has_shuffle_buffer(value: Any) -> bool:
    """Returns whether the object is a shuffled stream of Hugging Face. Its state lacks the rows in its shuffle buffer,
    and these rows would be lost after a worker's death. The loader reads such a stream again up to the position
    instead."""
    parts = [getattr(value, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        parts += (
            [getattr(part, "ex_iterable", None)] if hasattr(part, "ex_iterable") else getattr(part, "ex_iterables", [])
        )
    return False
