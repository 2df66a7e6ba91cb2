"""``RustLoader``, which loads a Rust dataset in the engine's own order, and the function that makes the engine of a
Rust dataset."""

import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import spawn
from typing import Any, NamedTuple

from .. import _exit, _native
from .._workers._worker_program import rust_worker_arguments
from ._output import Output
from ._rust_dataset import RustDataset, RustStream, json_value, of_native, refuse_python_code


def from_config(path: str | os.PathLike[str], *, output: Output | None = None) -> "RustLoader":
    """Returns the loader that a config file describes, with the options of its section ``[loader]``. The environment
    variables that the ``loader`` command reads override them."""
    native, options = _native.RustDataset.load(path)
    return RustLoader(of_native(native, output), **json.loads(options))


class RustLoader:
    """Loads batches of a Rust dataset in the order of this loader, not PyTorch's. It needs no PyTorch.

    Each iteration is an epoch, with the next number.

    Args:
        dataset: A dataset of this package.
        batch_size: Number of samples in a batch, 1 by default; ``None`` returns samples.
        options: Those of the section ``[loader]`` of a config file, such as ``shuffle``, ``seed`` and ``num_workers``.
    """

    def __init__(self, dataset: RustDataset | RustStream, batch_size: int | None = 1, **options: Any) -> None:
        refuse_python_code(dataset)
        self.dataset = dataset
        self._epoch = 0
        self._state: str | None = None
        # The last iterator. If this object held it, its workers would stay after `break`.
        self._batches: Callable[[], _native.BatchIterator | None] = lambda: None
        options["batch_size"] = 1 if batch_size is None else batch_size
        self._observers = _native.Observers()
        self._engine = engine(
            dataset, json.dumps(options, default=json_value), batch_size is not None, observers=self._observers
        )

    def __iter__(self) -> _native.BatchIterator:
        convert = self.dataset._convert
        if self._state is not None:
            batches = self._engine.resume(self._state, convert)
            self._state = None
        else:
            batches = self._engine.iterate(self._epoch, convert)
        self._epoch = batches.epoch + 1
        self._batches = weakref.ref(batches)
        _exit.close_at_exit(batches)
        return batches

    def __len__(self) -> int:
        batches = self._engine.batches()
        if batches is None:
            raise TypeError("the number of batches of a stream is known only at its end")
        return batches

    @property
    def metrics_address(self) -> str | None:
        """The address of the option ``metrics``, with the port that the system chose if the port was 0. The loader and
        its iterators keep the port: it is free once the program has dropped all of them."""
        return self._observers.metrics_address()

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch that the next iteration loads. If the loader has loaded a state of this epoch,
        the next iteration loads the rest of the epoch. A state of another epoch is dropped."""
        self._epoch = epoch
        if self._state is None or self._state.epoch != epoch:
            self._state = self._engine.state_at(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state: the position after the last batch that the last iterator has returned. Between
        :meth:`load_state_dict` and the next iteration, it is the loaded state; after :meth:`set_epoch`, the start of
        that epoch or the loaded state; before the first iteration, the start of the next epoch. It always has the same
        keys: ``"epoch"``, the number of the epoch, and ``"engine"``, the JSON of the state."""
        batches = self._batches()
        state = self._state or (batches.state() if batches is not None else None) or self._engine.last_state()
        state = state or self._engine.state_at(self._epoch)
        return {"epoch": state.epoch, "engine": str(state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration continues at the position that :meth:`state_dict` has returned.

        Raises:
            ValueError: If it is not a state of a loader, or was damaged or edited. The next ``iter`` raises it if the
                loader has another dataset or other options.
        """
        if not isinstance(state, Mapping) or not isinstance(state.get("engine"), str):
            raise ValueError("this is no state of a loader: it must come from RustLoader.state_dict()")
        loaded = _native.EngineState(state["engine"])
        if state.get("epoch") != loaded.epoch:
            raise ValueError(
                f"the state was damaged or edited after it was written, because its 'epoch' is not {loaded.epoch}, as in its"
                " 'engine': use an undamaged copy of it or an earlier state, or begin the epoch again"
            )
        if (batches := self._batches()) is not None:
            batches.note_loaded_state()
        self._state = loaded


def engine(
    dataset: RustDataset | RustStream,
    options: str,
    auto_collation: bool,
    begin: Callable[[int], Iterator[list[int]]] | None = None,
    batches: int = 0,
    sampler: str = "",
    observers: _native.Observers | None = None,
) -> _native.Engine:
    """Makes the engine of a dataset. ``begin`` gives the batches of indices; without it, the options determine the
    order."""
    program, observers = os.fsdecode(spawn.get_executable()), observers or _native.Observers()
    return dataset._native_dataset.engine(
        _RustParts(begin, batches, sampler, options, auto_collation, program, rust_worker_arguments(), observers)
    )


class _RustParts(NamedTuple):
    """See `Parts` in `rust_dataset.rs`."""

    begin: Callable[[int], Iterator[list[int]]] | None
    batches: int
    sampler_fingerprint: str
    options: str
    auto_collation: bool
    program: str
    arguments: list[str]
    observers: _native.Observers
