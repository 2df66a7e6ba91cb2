"""The states of the user's objects that have ``state_dict`` and ``load_state_dict``."""

import pickle
from collections.abc import Callable
from typing import Any

from . import _errors


def is_stateful(value: Any) -> bool:
    """True if the object has a state from which it goes on without a loss."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not _has_shuffle_buffer(value)


def pickle_position(position: dict[str, Any], states: Callable[[], dict[str, Any]]) -> bytes:
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
    return (
        pickle_position({"is_over": True}, lambda: {"dataset": dataset.state_dict()}) if is_stateful(dataset) else None
    )


def restore_between(dataset: Any, position: dict[str, Any]) -> None:
    """Gives a dataset a state of the end of an epoch, or before the first one."""
    states = states_in(position)
    if "dataset" in states:
        dataset.load_state_dict(states["dataset"])
    elif "iterator" in states:
        # What the iterator's state changes besides the iterator, such as a generator, remains.
        iter(dataset).load_state_dict(states["iterator"])


def states_in(position: dict[str, Any]) -> dict[str, Any]:
    """Returns the states of the user's objects in a position."""
    return pickle.loads(position["states"]) if "states" in position else {}


def _has_shuffle_buffer(value: Any) -> bool:
    """True for a shuffled stream of Hugging Face. Its state does not have the rows in its buffer, which would be missing after a
    worker's death: it is read again instead."""
    parts = [getattr(value, "_ex_iterable", None)]
    while parts:
        part = parts.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        parts += (
            [getattr(part, "ex_iterable", None)] if hasattr(part, "ex_iterable") else getattr(part, "ex_iterables", [])
        )
    return False
