"""The loader with PyTorch's interface."""

import contextlib
import functools
import inspect
import json
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import time
import weakref
from multiprocessing import spawn, util
from typing import Any, Literal, TypeVar

from . import _base, _collate, _epoch_notes, _exit, _fetch, _info, _keys, _native, _pickling, _rust, _shared_arrays, _state
from ._base import _BaseDataLoaderIter, _DatasetKind
from ._order import Order

#: What the template of workers imports if main has imported it.
_LARGE_LIBRARIES = ("numpy", "torch", "torchvision")

#: The engine's options, with the names of the section `[loader]` of a config file. `None` leaves the engine's default.
_ENGINE_OPTIONS = (
    "digest",
    "hedge",
    "max_bad_samples",
    "max_worker_deaths",
    "memory_limit",
    "metrics",
    "on_bad_sample",
    "on_worker_death",
    "sample_timeout",
    "shared_memory_limit",
    "trace",
    "trace_on_failure",
    "warn_after",
    "worker_affinity",
    "worker_memory_limit",
)


if _base.has_torch:
    _rust.register_stream()

_Batch = TypeVar("_Batch", covariant=True)


class DataLoader(_base.DataLoader[_Batch]):
    """Loads batches of a dataset, as ``torch.utils.data.DataLoader`` does, with worker processes that are replaced when they die.

    The arguments up to ``in_order`` are PyTorch's, with the same defaults, checks, warnings and exceptions. The order of the
    samples and the seeds of the workers are PyTorch's too, number for number.

    A worker that dies is replaced, and its batches are loaded again. The epoch is unchanged, unless samples draw random
    numbers: a new worker begins with the seed of the one before, so set ``seed_samples`` for such datasets.

    Args:
        num_workers: As in PyTorch, or ``"auto"``: the loader measures, and uses as many workers as are of use, at most four per
            CPU, or 16 if that is more, and never more than 62. Set ``persistent_workers`` too, so that an epoch begins with what
            the epoch before has found. An iterable dataset of Python objects has one worker per CPU with ``"auto"``, because
            it shares its samples among a fixed number of workers.
        on_bad_sample: What happens if ``dataset[i]`` raises: ``"error"`` (default) raises it in place of the batch, ``"skip"``
            leaves the sample out, ``"replace"`` takes another one.
        max_bad_samples: Maximum number of bad samples in an epoch; one more ends it. 10 by default.
        sample_timeout: Maximum seconds for one sample; a worker that takes longer is killed and replaced. No limit by default.
        on_worker_death: ``"restart"`` (default) replaces a worker that has died, ``"fail"`` raises ``RuntimeError`` as PyTorch.
        max_worker_deaths: Maximum number of deaths of a worker in a row; after one more it is not replaced. 10 by default.
        seed_samples: True to seed the generators of Python, PyTorch and NumPy before each sample, from the loader's seed, the
            epoch and the index. Then the samples of a map-style dataset are the same with any number of workers, after a
            worker has died, and after :meth:`load_state_dict`. ``__getitems__`` is then called for one index at a time.
            False by default: a worker seeds them once, as in PyTorch.
        move_tasks: True if idle workers take over batches that wait behind a slow one. By default it is ``seed_samples``:
            otherwise batch *i* is loaded by worker *i* modulo ``num_workers``, as in PyTorch, so that random numbers which
            samples draw from the generators of their worker are PyTorch's.
        hedge: True to give a late batch to a second worker too. False by default.
        memory_limit: Maximum bytes of memory of the loader, or a text such as ``"4 GiB"``. By default half of the memory that
            this process may use.
        shared_memory_limit: Maximum bytes of shared memory for batches, by default half of ``memory_limit``.
        worker_memory_limit: Maximum bytes of memory of a worker's own; a worker that uses more is replaced. No limit by default.
        worker_affinity: CPUs of each worker: ``"inherit"`` (default), ``"share"``, ``"spread"``, ``"pack"``, or a list of sets.
        warn_after: Seconds of waiting for a batch after which a warning names the worker that loads it, 30 by default.
        digest: True to compute a digest of the samples of the epoch. False by default.
        trace: File for a trace of main and the workers.
        trace_on_failure: File for a trace of the last events, written if an error ends the epoch.
        metrics: Address at which statistics are served for Prometheus, such as ``"127.0.0.1:9100"``.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        on_bad_sample: str | None = None,
        max_bad_samples: int | None = None,
        sample_timeout: float | None = None,
        on_worker_death: str | None = None,
        max_worker_deaths: int | None = None,
        seed_samples: bool = False,
        move_tasks: bool | None = None,
        hedge: bool | None = None,
        memory_limit: int | str | None = None,
        shared_memory_limit: int | str | None = None,
        worker_memory_limit: int | str | None = None,
        worker_affinity: Any = None,
        warn_after: float | None = None,
        digest: bool | None = None,
        trace: str | os.PathLike[str] | None = None,
        trace_on_failure: str | os.PathLike[str] | None = None,
        metrics: str | None = None,
    ) -> None:
        self._is_auto = num_workers == "auto"
        if num_workers == "auto":
            num_workers = len(os.sched_getaffinity(0))
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self._is_auto and self._dataset_kind == _DatasetKind.Map:
            # The maximum, which `get_worker_info` shows.
            self.num_workers = min(max(4 * self.num_workers, 16), 62)
        self.seed_samples = seed_samples
        self.move_tasks = seed_samples if move_tasks is None else move_tasks
        self._begun_epochs = 0
        self._resume_from: dict[str, Any] | None = None
        self._last_iterator: Any = lambda: None
        # The state when the last iterator was dropped, as by `break`, and which iterator that is.
        self._last_state: dict[str, Any] | None = None
        self._last_number = 0
        is_python = _rust.base_of(dataset) is None
        if num_workers > 0 and is_python and not _info.is_worker and _start_method(self) != "spawn":
            _native.start_template(_interpreter(), _template_arguments())
        arguments = locals()
        for name in _ENGINE_OPTIONS:
            setattr(self, name, arguments[name])

    def _get_iterator(self) -> "_Iterator | _state.NoBatches":
        if self.num_workers > 0:
            if _info.is_worker:
                raise RuntimeError(
                    "a worker process has begun to load with workers of its own: put the lines that begin to train under"
                    ' `if __name__ == "__main__":`, because workers import this script, or install cloudpickle; a dataset'
                    " that has a loader must load with num_workers=0"
                )
            if not self._is_auto:
                self.check_worker_number_rationality()
        if self._resume_from is not None and self._resume_from["at"] == "end":
            return _state.NoBatches(self)
        return _Iterator(self)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a pickle or a copy of the loader has: all but its iterators and their positions."""
        # As a function, `type(None)` returns `None`, and unlike a lambda it can be pickled.
        return self.__dict__ | {"_iterator": None, "_last_iterator": type(None), "_last_state": None}

    def _end_epoch(self) -> None:
        """Called when the iterator of :class:`NoBatches` has ended: the next one begins an epoch."""
        if self._resume_from is not None:
            self._resume_from = self._resume_from | {"at": "between"}
        self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, which is the position in the epoch: after the batch that the last iterator has returned last,
        however many batches are loaded ahead. It has only what JSON has. It contains the random number generators that
        determine the order, and the states of a dataset and a sampler with ``state_dict`` and ``load_state_dict``.

        After the last batch the state still belongs to the epoch, and the iterator that continues from it has no batches.
        Once the iterator has ended, the state is the beginning of the next epoch.

        Raises:
            RuntimeError: If the dataset or the sampler has ``state_dict`` and ``load_state_dict``, and ``state_dict`` has raised an
                exception, which is the cause, or has returned what ``pickle`` cannot write.
        """
        if self._resume_from is not None:
            return self._resume_from
        iterator = self._last_iterator()
        state = iterator._state() if iterator is not None else self._last_state
        if state is None or (iterator is None and state["at"] != "within"):
            state = (state or self._before_epoch()) | {"generators": _state.Generators(self).capture()}
        state = {"version": _state.VERSION, "epochs": self._begun_epochs, "num_workers": self.num_workers} | state
        _state.raise_error(state, is_rust=_rust.base_of(self.dataset) is not None)
        return state

    def _before_epoch(self) -> dict[str, Any]:
        """Returns the part of the state that the datasets and samplers have, if there was no iterator yet."""
        dataset = _fetch.dataset_state(self.dataset) if self.num_workers == 0 else None
        datasets = {} if dataset is None else {"0": _state.to_text(dataset)}
        sampler = _state.sampler_of(self)
        return {"at": "between", "datasets": datasets, "sampler": _state.sampler_state(sampler) if sampler is not None else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator continue from a position that :meth:`state_dict` has returned, with the same dataset and
        options. The number of workers of a map-style dataset may be another one, unless it has ``state_dict``. The order of
        the rest is the same, if the sampler draws before its first batch, as those of PyTorch do, or has ``state_dict`` and
        ``load_state_dict``.

        The state contains pickles, so load only states that you trust.

        Raises:
            ValueError: If ``state_dict`` is not a state of a loader, or has a format version that this package does not read.
                The next ``iter`` raises it if the loader has another dataset, other options, or another number of workers
                where that matters; in that case it is an ``AssertionError`` too, as torchdata raises.
        """
        if not isinstance(state_dict, dict) or "version" not in state_dict:
            raise ValueError("this is no state of a loader: it must come from DataLoader.state_dict()")
        if state_dict["version"] != _state.VERSION:
            raise ValueError(
                f"this state has version {state_dict['version']}, and this package reads {_state.VERSION}: load it with the version"
                " of the package that wrote it"
            )
        if "at" not in state_dict:
            raise ValueError("this state is incomplete: it must come from DataLoader.state_dict()")
        self._begun_epochs = state_dict["epochs"]
        self._resume_from = state_dict
        self._last_iterator, self._last_state = (lambda: None), None
        self._last_number += 1
        # Persistent workers belong to the epoch before.
        self._iterator = None

    def _engine_options(self) -> dict[str, Any]:
        is_map = self._dataset_kind == _DatasetKind.Map
        options: dict[str, Any] = {"num_workers": self.num_workers, "in_order": self.in_order}
        if self._is_auto and (is_map or _rust.base_of(self.dataset) is not None):
            options["num_workers"] = {"auto": {"max": self.num_workers}} if is_map else "auto"
        if self.num_workers > 0:
            options |= {
                "prefetch_factor": self.prefetch_factor,
                "persistent_workers": bool(self.persistent_workers),
                "move_tasks": self.move_tasks,
            }
            if self.timeout > 0:
                options["timeout"] = self.timeout
        if self._dataset_kind == _DatasetKind.Iterable:
            options |= {"batch_size": self.batch_size or 1, "drop_last": self.drop_last, "shards": max(self.num_workers, 1)}
        given = {name: getattr(self, name) for name in _ENGINE_OPTIONS}
        return options | {name: _as_json(value) for name, value in given.items() if value is not None}


class _Iterator(_BaseDataLoaderIter):
    """The batches of an epoch; of several, if the workers are persistent."""

    def __init__(self, loader: DataLoader) -> None:
        state = loader._resume_from
        within = state if state is not None and state["at"] == "within" else None
        is_map = loader._dataset_kind == _DatasetKind.Map
        self._generators = _state.Generators(loader)
        self._stateful_sampler = _state.sampler_of(loader)
        self._fetcher: _fetch.Fetcher | None = None
        self._notes: _epoch_notes.EpochNotes | None = None
        # The states of the dataset in the workers, as far as they are known.
        self._states: dict[int, bytes] = {}
        self._is_before_seed = False
        if state is not None:
            self._generators.check(state["generators"])
            _state.check_workers(state, loader)
            self._states = {int(worker): _state.from_text(text) for worker, text in state["datasets"].items()}
        is_undrawn = within is None or (is_map and within["engine"]["place"] == "start")
        if is_undrawn and loader.num_workers == 0 and 0 in self._states:
            # Before the epoch draws its numbers: the dataset may set the generators.
            _fetch.restore_between(loader.dataset, pickle.loads(self._states.pop(0)))
        # True if the state is from before what PyTorch's class draws: the seed, and the order of a sampler that is no generator.
        is_before_seed = state is not None and (within is None or not is_map or within["is_before_seed"])
        with contextlib.ExitStack() as stack:
            if is_before_seed:
                stack.enter_context(self._generators.as_saved(state["generators"]))
            self._began_with = self._generators.capture()
            self._load_sampler(state)
            with contextlib.nullcontext() if within is None or is_before_seed else _state.undone(within["generators"]):
                super().__init__(loader)
            if within is not None:
                self._base_seed = within["base_seed"]
            elif state is not None and "base_seed" in state and loader.persistent_workers:
                # The workers of the state would have stayed, and their seed has been drawn before.
                self._generators.restore(state["generators"])
                if loader.seed_samples or _rust.base_of(loader.dataset) is not None:
                    # The seed of a sample depends on the epoch too. Otherwise the new workers would draw the numbers of the
                    # first epoch once more, so they keep the new seed.
                    self._base_seed = state["base_seed"]
            self._make_engine(loader)
            if is_map:
                if within is None:
                    # A generator function draws its first numbers when the engine asks for a batch.
                    is_before_seed = self._num_workers == 0 and not inspect.isgenerator(self._sampler_iter)
                elif not is_before_seed:
                    stack.enter_context(self._generators.as_saved(within["generators"]))
                self._is_before_seed = is_before_seed
                if not is_before_seed:
                    self._began_with = self._generators.capture()
                    if self._num_workers > 0 or within is not None:
                        # PyTorch, too, begins the sampler once more for workers.
                        self._load_sampler(state)
                        self._sampler_iter = iter(self._index_sampler)
                self._batches = self._start(loader, state)
        # The state of a dataset within an epoch is from after these draws.
        if within is not None:
            self._restore_generators(within)
        if self._fetcher is not None:
            self._fetcher.restore(self._states.pop(0, None))
            if not is_map and (within is None or _is_start(within["engine"])):
                self._fetcher.begin()
        if not is_map:
            self._batches = self._start(loader, state)

    def _restore_generators(self, within: dict[str, Any]) -> None:
        """Gives back the generators with which an iterable dataset was begun."""
        for worker, text in within["dataset_generators"].items():
            generators = _state.from_text(text)
            if self._fetcher is not None:
                self._fetcher.saved_generators = generators
            elif self._notes is not None:
                epoch = within["engine"]["epoch"]
                _epoch_notes.append(self._notes.path, _epoch_notes.GENERATORS, int(worker), epoch, generators)

    def _dataset_generators(self) -> dict[int, bytes]:
        if self._notes is not None:
            return self._notes.generators(self._epoch)
        generators = self._fetcher.generators() if self._fetcher is not None else None
        return {} if generators is None else {0: generators}

    def _load_sampler(self, state: dict[str, Any] | None) -> None:
        sampler = state["sampler"] if state is not None else None
        if sampler is not None and self._stateful_sampler is not None:
            _state.load_sampler_state(self._stateful_sampler, sampler)

    def _make_engine(self, loader: DataLoader) -> None:
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("a loader without workers has no timeout: num_workers=0 needs timeout=0")
        if self._num_workers > 0 and loader.prefetch_factor == 0:
            raise AssertionError("prefetch_factor must be at least 1")
        rust = _rust.base_of(loader.dataset)
        self._in_order, self._persistent = loader.in_order, bool(loader.persistent_workers)
        self._order: Order | None = None
        self._engine = self._python_engine(loader) if rust is None else self._rust_engine(loader, *rust)
        self._loads = _collate.loads if rust is None else rust[0].convert

    def _rust_engine(
        self, loader: DataLoader, dataset: _rust.RustDataset | _rust.RustStream, subsets: list[Any]
    ) -> _native.Engine:
        """Makes the engine of a dataset that workers load without Python code."""
        _rust.check(loader, loader.collate_fn in _base.default_collations)
        if self._dataset_kind == _DatasetKind.Map:
            self._order = _rust.IndexOrder(self._index_sampler, self._auto_collation, len(dataset), subsets)
        options = loader._engine_options() | {"seed": self._base_seed}
        # Samples draw from generators of their own, so batches may move between workers.
        options.pop("move_tasks", None)
        return _rust.engine(
            dataset,
            json.dumps(options),
            auto_collation=self._auto_collation,
            begin=self._order.begin if self._order else None,
            batches=_length(loader._index_sampler) if self._order else 0,
            sampler=type(loader._index_sampler).__qualname__,
        )

    def _python_engine(self, loader: DataLoader) -> _native.Engine:
        is_map = self._dataset_kind == _DatasetKind.Map
        is_local = self._num_workers == 0
        keys = _keys.KeyList() if is_local else _keys.KeyFile()
        is_template = _start_method(loader) != "spawn"
        self._fetcher = self._opened(keys) if is_local else None
        self._notes = None if is_local or is_map else _epoch_notes.EpochNotes()
        self._order = _keys.KeyOrder(self._index_sampler, self._auto_collation, keys) if is_map else None
        return _native.Engine(
            _Parts(
                pickle=None if is_local else self._pickle(loader, keys.paths),
                opened=self._fetcher,
                fingerprint=_fingerprint(loader.dataset),
                begin=self._order.begin if self._order else None,
                batches=_length(loader._index_sampler) if is_map else 0,
                sampler_fingerprint=_name(loader._index_sampler),
                seed_samples=loader.seed_samples,
                options=json.dumps(loader._engine_options() | {"seed": self._base_seed}),
                program=_interpreter(),
                arguments=_template_arguments() if is_template else _worker_arguments(),
                is_template=is_template,
            )
        )

    def _opened(self, keys: _keys.KeyList) -> _fetch.Fetcher:
        if isinstance(self._dataset, _base.data_pipes):
            _base.apply_sharding(self._dataset, self._world_size, self._rank)
        return _fetch.Fetcher(self._dataset, self._collate_fn, self._auto_collation, keys, None)

    def _pickle(self, loader: DataLoader, keys: tuple[str, ...]) -> bytes:
        worker_init_fn = loader.worker_init_fn
        if isinstance(self._dataset, _base.data_pipes):
            worker_init_fn = functools.partial(_base.sharding_worker_init_fn, worker_init_fn, self._world_size, self._rank)
        settings = {
            "base_seed": self._base_seed,
            "num_workers": self._num_workers,
            "auto_collation": self._auto_collation,
            "keys": keys,
            "is_map": self._dataset_kind == _DatasetKind.Map,
            "states": self._states,
            "notes": self._notes.path if self._notes is not None else None,
            "is_persistent": self._persistent,
            "torch": _base.has_torch,
            "default_dtype": _base.default_dtype(),
        }
        # A worker that is replaced opens it too.
        self._arrays = _shared_arrays.ArrayFile()
        return _pickling.dumps((self._dataset, self._collate_fn, worker_init_fn), settings, self._arrays)

    def _start(self, loader: DataLoader, state: dict[str, Any] | None) -> _native.BatchIterator:
        within = state if state is not None and state["at"] == "within" else None
        if self._order is not None:
            sampler = self._stateful_sampler
            capture = None if sampler is None else functools.partial(_state.sampler_state, sampler)
            is_loaded = sampler is not None and state is not None and state["sampler"] is not None
            self._order.set_begun(self._sampler_iter, capture, is_loaded)
            # Without workers, the first batch is drawn when the program asks for it.
            is_drawn_later = self._num_workers == 0 and not self._is_before_seed
            self._order.capture_generators = self._generators.capture if is_drawn_later else None
            if within is not None and is_loaded:
                self._order.set_before(within["first"], _given(within["engine"]))
        if within is not None:
            batches = self._engine.resume_epoch(json.dumps(within["engine"]), self._loads)
            if self._order is not None and is_loaded:
                self._order.first_keys = within["first_keys"]
            elif self._order is not None and self._order.first_keys != within["first_keys"]:
                # The engine compares the numbers of the first batch, which do not show which keys these are.
                raise ValueError(
                    "the sampler gives another first batch than in the run of the state: make the loader with the same `sampler` and"
                    " `generator` as before"
                )
            self._num_yielded = within["returned"]
        else:
            batches = self._engine.iterate(loader._begun_epochs, self._loads)
            if state is not None:
                # While the generators are those of the state.
                batches.draw_first()
            loader._begun_epochs += 1
        # Only now: a state that does not fit must not be forgotten.
        loader._resume_from = None
        self._is_over = False
        self._epoch = batches.epoch
        self._last_pids: list[int] = []
        loader._last_iterator, loader._last_state = weakref.ref(self), None
        loader._last_number += 1
        self._loader, self._number = weakref.ref(loader), loader._last_number
        _exit.close_at_exit(batches)
        return batches

    def _reset(self, loader: DataLoader, first_iter: bool = False) -> None:
        self._batches.close()
        self._began_with, self._is_before_seed = self._generators.capture(), False
        super()._reset(loader, first_iter)
        if self._notes is not None:
            self._notes.begin_epoch(self._epoch + 1)
        if isinstance(self._dataset, _base.data_pipes):
            # PyTorch has given it the seed of this epoch. Workers get it with the dataset, so they cannot stay.
            self._make_engine(loader)
        self._batches = self._start(loader, None)

    def _next_data(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_over = True
            raise
        returned = batch
        if type(batch) is _fetch.BatchWithState:
            batch = batch.batch
        if self._pin_memory:
            # PyTorch's allocator uses this memory again only after the copies to the device that read it. A slot is used
            # again as soon as the batch is dropped, so slots are not page-locked.
            try:
                batch = _base.pin_memory(batch, self._pin_memory_device)
            except KeyboardInterrupt:
                self._batches.put_back(returned)
                raise
        if type(returned) is _fetch.BatchWithState:
            self._states[returned.worker] = returned.state
        if self._num_workers > 0 and not self._last_pids:
            self._last_pids = self._batches.worker_pids()
        if self._order is not None:
            if self._in_order:
                # The state is behind this batch from now on.
                self._order.states.pop(self._num_yielded, None)
            if self._order.has_keys and (first := self._batches.first_unreturned()) is not None:
                self._order.free(first)
        return batch

    def _state(self) -> dict[str, Any] | None:
        """Returns what the state of the loader says of this epoch; `None` once the iterator is closed."""
        text = self._batches.state()
        if text is None:
            return None
        engine = json.loads(text)
        is_within = not self._is_over and engine["epoch"] == self._epoch
        states = dict(self._states) if is_within or self._persistent else {}
        if self._notes is not None and self._persistent:
            states |= self._notes.last_states(self._epoch if is_within else self._epoch + 1)
        if self._fetcher is not None and not (is_within and self._order is None and not _is_start(engine)):
            # Elsewhere the engine's state has it.
            snapshot = self._fetcher.snapshot()
            states = {} if snapshot is None else {0: snapshot}
        state: dict[str, Any] = {"datasets": {str(worker): _state.to_text(each) for worker, each in states.items()}}
        if is_within or self._persistent:
            state["base_seed"] = self._base_seed
        if not is_within:
            sampler = None if self._stateful_sampler is None else _state.sampler_state(self._stateful_sampler)
            at = "between" if self._is_over else "end"
            return state | {"at": at, "generators": self._generators.capture(), "sampler": sampler}
        order = self._order
        return state | {
            "at": "within",
            "generators": self._generators_at_start(),
            "engine": engine,
            "is_before_seed": self._is_before_seed,
            "returned": self._num_yielded,
            "sampler": order.sampler_state(_given(engine)) if order is not None else None,
            "first": order.first if order is not None and self._stateful_sampler is not None else [],
            "first_keys": order.first_keys if order is not None else None,
            "dataset_generators": {str(worker): _state.to_text(each) for worker, each in self._dataset_generators().items()},
        }

    def _generators_at_start(self) -> Any:
        """Returns the generators from which the order of this epoch was drawn, or will be."""
        if self._order is None or self._order.capture_generators is None:
            return self._began_with
        return self._order.generators or self._order.capture_generators()

    @property
    def _workers(self) -> list["_Worker"]:
        """The workers, as programs that use PyTorch's private list expect them; at the end of an epoch those that were there."""
        self._last_pids = self._batches.worker_pids() or self._last_pids
        return [_Worker(pid) for pid in self._last_pids]

    def _shutdown_workers(self) -> None:
        """Ends the workers, for programs that call PyTorch's private method."""
        self._leave()

    def report(self) -> str | None:
        """Returns the report of the epoch so far: figures, and what the bottleneck is."""
        return self._batches.report()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._leave()

    def _leave(self) -> None:
        """Closes the iterator, and gives its state to the loader."""
        loader = self._loader()
        if loader is not None and loader._last_number == self._number:
            loader._last_iterator, loader._last_state = (lambda: None), self._state()
            self._number = -1
        self._batches.close()


class _Worker:
    """A worker process, with the methods of ``multiprocessing.Process`` that ask about it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def is_alive(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def join(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.005)


class _Parts:
    """What an engine is made from; see `Parts` in `engine.rs`."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def _given(engine: dict[str, Any]) -> int:
    """Returns the number of the first batch that was not returned, of the engine's state."""
    return 0 if engine["place"] == "start" else engine["place"]["batches"]["next"]


def _is_start(engine: dict[str, Any]) -> bool:
    """True if no sample of an iterable dataset was returned, so that the engine's state has no position of the dataset."""
    place = engine["place"]
    return place == "start" or all(shard["position"] == 0 for shard in place["shards"]["shards"])


def _start_method(loader: DataLoader) -> str | None:
    context = loader.multiprocessing_context
    return multiprocessing.get_start_method(allow_none=True) if context is None else context.get_start_method()


#: The seed of the hashes of texts in workers. A new worker must see sets in the order of the worker that it replaces.
_HASH_SEED = random.SystemRandom().randrange(1, 1 << 32)


def _interpreter() -> str:
    path = os.fsdecode(spawn.get_executable())
    if shutil.which(path) is None:
        raise RuntimeError(
            f"workers cannot start: there is no Python interpreter at {path}; correct it with multiprocessing.set_executable()"
        )
    return path


def _worker_arguments() -> list[str]:
    """Returns the interpreter's arguments for a worker that is started afresh."""
    return _arguments("from loader._worker import main; main()")


def _template_arguments() -> list[str]:
    """Returns the interpreter's arguments for the template, which imports the large libraries that main has imported."""
    names = ", ".join(repr(name) for name in _LARGE_LIBRARIES if sys.modules.get(name))
    return _arguments(f"from loader._template import main; main({names})")


def _arguments(code: str) -> list[str]:
    # `-P` keeps the working directory out of the way: it may have a module with the name of this package. An interpreter reads
    # the seed of its hashes when it starts, so it starts once more.
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    start = (
        "import os, sys\n"
        "if os.environ.get('PYTHONHASHSEED', 'random') == 'random':\n"
        f"    os.environ['PYTHONHASHSEED'] = '{_HASH_SEED}'\n"
        "    os.execv(sys.executable, sys.orig_argv)\n"
        f"sys.path.insert(0, {folder!r})\n{code}"
    )
    return [*util._args_from_interpreter_flags(), "-P", "-c", start]


def _fingerprint(dataset: Any) -> str:
    return f"{_name(dataset)} of {_length(dataset)}"


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _length(value: Any) -> int:
    """Returns the length, and 0 if there is none. PyTorch does not ask for it here, so no exception of it must end the epoch."""
    try:
        return len(value)
    except Exception:
        return 0


def _as_json(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
