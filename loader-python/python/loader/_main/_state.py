"""The parts of a loader's state besides the engine's state. ``DataLoader`` and its iterator write and read them in
main.

The content of a state is JSON, so that any format can hold it. Objects, such as the states of random number generators
and of the user's dataset, are pickles in base64. Around the content, a state always has the same keys.
``torch.distributed.checkpoint`` reads only what the keys of a new loader's state name, also in nested values.

Alternative considered: numbers in lists. They are longer, each generator would need a conversion of its own, and the
state of the user's objects is a pickle anyway.
"""

import base64
import contextlib
import hashlib
import json
import pickle
from collections.abc import Iterator
from typing import Any

from .. import _errors, _native
from .._data import _generators
from .._data._stateful import is_stateful, pickle_position, states_in
from . import _base

#: Version of the format.
VERSION = 1


class WrongWorkers(ValueError, AssertionError):
    """The state has a part for each worker, and the loader has another number of workers. The class is an
    ``AssertionError`` too, because torchdata's loader raises that."""


def written(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the state with this content."""
    text = json.dumps(content)
    return {"version": VERSION, "content": text, "hash": _hash_of(text)}


def read(state: Any) -> dict[str, Any]:
    """Returns the content of a state that :func:`written` has returned.

    Raises:
        ValueError: If it is none, or of another version, or was damaged or edited.
    """
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError("this is no state of a loader: it must come from DataLoader.state_dict()")
    if state["version"] != VERSION:
        raise ValueError(
            f"this state has version {state['version']}, and this package reads {VERSION}: load it with the version of"
            " the package that wrote it"
        )
    for key in ("content", "hash"):
        if not isinstance(state.get(key), str):
            raise ValueError(
                f"this state is incomplete, because it has no text {key!r}: load all that state_dict() returned"
            )
    if state["hash"] != _hash_of(state["content"]):
        raise ValueError(
            "the state was damaged or edited after it was written, because its hash is not that of its content: use an"
            " undamaged copy of it or an earlier state, or begin the epoch again"
        )
    return json.loads(state["content"])


def _hash_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def to_text(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value, protocol=5)).decode()


def from_text(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def sampler_of(loader: Any) -> Any:
    """Returns the sampler that has a state: the sampler of batches if both have one, ``None`` if none has one."""
    found = (loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return next((sampler for sampler in found if is_stateful(sampler)), None)


def sampler_state(sampler: Any) -> str:
    """Returns the state of a sampler, or the error of its ``state_dict``."""
    return base64.b64encode(pickle_position({}, lambda: {"sampler": sampler.state_dict()})).decode()


def load_sampler_state(sampler: Any, text: str) -> None:
    """Gives a sampler a state that :func:`sampler_state` has returned."""
    sampler.load_state_dict(states_in(from_text(text))["sampler"])


def raise_error(state: dict[str, Any], is_python_stream: bool) -> None:
    """Raises ``RuntimeError`` if the ``state_dict`` of an object of the user has raised an error in place of its
    state."""
    found = [("dataset", int(worker), from_text(text)) for worker, text in state["datasets"].items()]
    if is_python_stream and state["at"] == "within":
        snapshots = enumerate(_native.EngineState(state["engine"]).snapshots())
        found += [("dataset", shard, snapshot) for shard, snapshot in snapshots if snapshot is not None]
    if state["sampler"] is not None:
        found.append(("sampler", None, base64.b64decode(state["sampler"])))
    for owner, worker, position in found:
        if error := pickle.loads(position).get("error"):
            line, trace, kind = error
            worker = worker if state["num_workers"] > 0 else None
            raise RuntimeError(
                f"there is no state of the loader, because its {owner} has none: {line}; let `state_dict` of the"
                f" {owner} return what `pickle` can write, or remove it to resume without"
            ) from _errors.raised_again(trace, kind, worker)


def check_workers(state: dict[str, Any], loader: Any) -> None:
    """Raises :class:`WrongWorkers` if the loader has another number of workers than the state, and cannot go on with
    it."""
    has_positions = loader._dataset_kind == _base._DatasetKind.Iterable or is_stateful(loader.dataset)
    has_parts = bool(state["datasets"]) or (state["at"] == "within" and has_positions)
    if has_parts and state["num_workers"] != loader.num_workers:
        raise WrongWorkers(
            f"the state is of a loader with num_workers={state['num_workers']}, and this loader has"
            f" num_workers={loader.num_workers}: make it with the number of the state, because an iterable dataset, or"
            " one with `state_dict`, has a state in each worker"
        )


class OrderGenerators:
    """The generators that determine the order of a loader: its own, and the global ones."""

    def __init__(self, loader: Any) -> None:
        owners = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
        found = (getattr(owner, "generator", None) for owner in owners)
        own = {id(generator): generator for generator in found if isinstance(generator, _base.Generator)}
        self._own = list(own.values())

    def capture(self) -> dict[str, Any]:
        """Returns their states as they are now."""
        own = [to_text(_base.generator_state(generator)) for generator in self._own]
        return {"own": own, "global": {name: to_text(state) for name, state in _generators.capture().items()}}

    def check(self, saved: dict[str, Any]) -> None:
        """Raises ``ValueError`` if the states belong to other generators."""
        if len(saved["own"]) != len(self._own):
            raise ValueError(
                f"the state has {len(saved['own'])} random number generators, and the loader has {len(self._own)}: make"
                " the loader with the same `sampler` and `generator` as before"
            )

    def restore(self, saved: dict[str, Any]) -> None:
        """Sets them to the states that :meth:`capture` has returned."""
        for generator, state in zip(self._own, saved["own"], strict=True):
            _base.set_generator_state(generator, from_text(state))
        _generators.restore(_read(saved["global"]))

    @contextlib.contextmanager
    def as_saved(self, saved: dict[str, Any]) -> Iterator[None]:
        """Sets the generators for the body to the states that :meth:`capture` has returned. After the body, each global
        generator returns to its state from before the body. Exception: a generator that the program itself had set to
        its saved state keeps the state that the body has left."""
        with _generators.kept(_read(saved["global"])):
            self.restore(saved)
            yield


@contextlib.contextmanager
def undone(saved: dict[str, Any]) -> Iterator[None]:
    """Restores each global generator after the body to its state from before the body. Exception: a generator that the
    body has left in its state in ``saved`` keeps that state. The program has set it to its state from before the same
    draws in the run of the state."""
    before, targets = _generators.capture(), _read(saved["global"])
    yield
    after = _generators.capture()
    _generators.restore({name: state for name, state in before.items() if after[name] != targets.get(name)})


def _read(texts: dict[str, str]) -> dict[str, Any]:
    return {name: from_text(text) for name, text in texts.items()}
