"""The iterators of :class:`DataLoader`: they begin or resume an epoch, return the batches of the engine, and know the
state."""

import contextlib
import functools
import inspect
import os
import pickle
import weakref
from typing import TYPE_CHECKING, Any

from .. import _errors, _exit, _native
from .._data import _epoch_log, _fetch, _stateful
from .._rust import _rust_dataset
from . import _base, _engine, _state
from ._base import _BaseDataLoaderIter, _DatasetKind
from ._worker_process import WorkerProcess

if TYPE_CHECKING:
    from ._dataloader import DataLoader


class LoaderIterator(_BaseDataLoaderIter):
    """Returns the batches of an epoch, or of several epochs one after the other if the workers are persistent."""

    def __init__(self, loader: "DataLoader") -> None:
        state = loader._loaded_state
        within = state if state is not None and state["at"] == "within" else None
        # The engine's state, if the loader's state is from within an epoch.
        engine_state = None if within is None else _native.EngineState(within["engine"])
        is_map = loader._dataset_kind == _DatasetKind.Map
        self._generators = _state.OrderGenerators(loader)
        self._stateful_sampler = _state.sampler_of(loader)
        self._fetcher: _fetch.Fetcher | None = None
        self._epoch_log: _epoch_log.EpochLog | None = None
        # The last state of the dataset that main knows, by worker.
        self._dataset_states: dict[int, bytes] = {}
        # Without workers: the number of the map-style batch of the last call of `next`, and the dataset's state before
        # it.
        self._before_batch: tuple[int | None, bytes | None] = (None, None)
        self._is_before_seed = False
        if state is not None:
            self._generators.check(state["generators"])
            _state.check_workers(state, loader)
            self._dataset_states = {int(worker): _state.from_text(text) for worker, text in state["datasets"].items()}
        is_undrawn = engine_state is None or (is_map and engine_state.is_at_start)
        has_loaded_end = is_undrawn and loader.num_workers == 0 and 0 in self._dataset_states
        if has_loaded_end:
            # The dataset may set the generators, so it is restored before the epoch draws its numbers.
            _stateful.restore_between(loader.dataset, pickle.loads(self._dataset_states.pop(0)))
        # True if the state is from before the draws of PyTorch's class: the base seed, and the order of a sampler that
        # is not a generator function.
        is_before_seed = state is not None and (within is None or not is_map or within["is_before_seed"])
        with contextlib.ExitStack() as stack:
            if is_before_seed:
                stack.enter_context(self._generators.as_saved(state["generators"]))
            self._captured_generators = self._generators.capture()
            self._load_sampler(state)
            with contextlib.nullcontext() if within is None or is_before_seed else _state.undone(within["generators"]):
                super().__init__(loader)
            if within is not None:
                self._base_seed = within["base_seed"]
            elif state is not None and "base_seed" in state:
                # The state is of persistent workers, which would have stayed. Their seed was drawn before the state.
                self._generators.restore(state["generators"])
                if loader.seed_samples or _rust_dataset.base_of(loader.dataset) is not None:
                    # The seed of a sample depends on the epoch too. Otherwise the new workers would draw the numbers of
                    # the first epoch once more, so they keep the new seed.
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
                    self._captured_generators = self._generators.capture()
                    if self._num_workers > 0 or within is not None:
                        # PyTorch too calls `iter` of the sampler a second time if there are workers, in this method.
                        # SpeechBrain replaces the method, to keep the position to which it has advanced the first.
                        self._load_sampler(state)
                        super()._reset(loader, first_iter=True)
                self._batches = self._start(loader, state, engine_state)
        # In the run of the state, these draws were before the state of the dataset.
        if engine_state is not None:
            self._restore_generators(within, engine_state.epoch)
        if self._fetcher is not None:
            self._fetcher.has_loaded_end = has_loaded_end
            self._fetcher.restore(self._dataset_states.pop(0, None))
            if not is_map and (engine_state is None or engine_state.is_before_first_sample):
                self._fetcher.begin()
        if not is_map:
            self._batches = self._start(loader, state, engine_state)

    def _restore_generators(self, within: dict[str, Any], epoch: int) -> None:
        """Gives the fetcher or the epoch log the generators with which an iterable dataset was begun."""
        for worker, text in within["dataset_generators"].items():
            generators = _state.from_text(text)
            if self._fetcher is not None:
                self._fetcher.saved_generators = generators
            elif self._epoch_log is not None:
                _epoch_log.append(self._epoch_log.fileno(), _epoch_log.GENERATORS, int(worker), epoch, generators)

    def _dataset_generators(self) -> dict[int, bytes]:
        if self._epoch_log is not None:
            return self._epoch_log.generators(self._epoch)
        generators = self._fetcher.generators() if self._fetcher is not None else None
        return {} if generators is None else {0: generators}

    def _load_sampler(self, state: dict[str, Any] | None) -> None:
        sampler = state["sampler"] if state is not None else None
        if sampler is not None and self._stateful_sampler is not None:
            _state.load_sampler_state(self._stateful_sampler, sampler)

    def _make_engine(self, loader: "DataLoader") -> None:
        self._in_order, self._persistent = loader.in_order, bool(loader.persistent_workers)
        setup = _engine.make(self, loader, self._dataset_states)
        self._owner = os.getpid()
        self._engine, self._decode, self._order = setup.engine, setup.decode, setup.order
        self._fetcher, self._epoch_log = setup.fetcher, setup.epoch_log
        # A worker that is replaced opens the file of arrays too.
        self._arrays = setup.arrays
        # Batches refer to classes and functions of main.
        self._sent = setup.sent
        self._lost_settings = setup.lost_settings

    def _start(
        self, loader: "DataLoader", state: dict[str, Any] | None, engine_state: _native.EngineState | None
    ) -> _native.BatchIterator:
        if self._order is not None:
            sampler = self._stateful_sampler
            capture = None if sampler is None else functools.partial(_state.sampler_state, sampler)
            has_loaded_state = sampler is not None and state is not None and state["sampler"] is not None
            # A sampler that has loaded the end of the epoch before may begin there.
            begins_at_end, loader._sampler_is_at_end = loader._sampler_is_at_end, False
            self._order.set_iterator(self._sampler_iter, capture, has_loaded_state or begins_at_end)
            # Without workers, the first batch is drawn when the program asks for it.
            is_drawn_later = self._num_workers == 0 and not self._is_before_seed
            self._order.capture_generators = self._generators.capture if is_drawn_later else None
            if engine_state is not None and has_loaded_state:
                loader._sampler_is_at_end = engine_state.is_at_end
                self._order.skip(state["first"], engine_state.first_unreturned_batch, engine_state.is_at_end)
        if engine_state is not None:
            batches = self._engine.resume(engine_state, self._decode)
            if self._order is not None and has_loaded_state:
                self._order.first_keys_hash = state["first_keys"]
            elif state["has_drawn"] and self._order.first_keys_hash != state["first_keys"]:
                # The engine compares the numbers of the first batch, which do not show which keys these are.
                raise ValueError(
                    "the sampler gives another first batch than in the run of the state: make the loader with the same"
                    " `sampler` and `generator` as before"
                )
            self._num_yielded = state["returned"]
        else:
            batches = self._engine.iterate(loader._next_epoch, self._decode)
            if state is not None:
                # The first batch is drawn while the generators are those of the state.
                batches.draw_first()
            loader._next_epoch += 1
        # The state is dropped only now: after an error, the program can still use the loader with it.
        loader._loaded_state = None
        self._epoch = batches.epoch
        self._last_pids: list[int] = []
        loader._last_iterator, loader._last_state = weakref.ref(self), None
        loader._last_iterator_number += 1
        self._loader, self._number = weakref.ref(loader), loader._last_iterator_number
        _exit.close_at_exit(batches)
        return batches

    def _reset(self, loader: "DataLoader", first_iter: bool = False) -> None:
        before = self._state()
        try:
            self._begin_again(loader, first_iter)
        except BaseException:
            if before is not None and before["at"] != "within":
                # For example, a worker has died since the last epoch. The last states of the datasets are still known.
                loader._last_iterator, loader._last_state = (lambda: None), before | {"at": "between"}
                self._number = -1
                self._generators.restore(before["generators"])
            raise

    def _begin_again(self, loader: "DataLoader", first_iter: bool) -> None:
        self._batches.close()
        self._captured_generators, self._is_before_seed = self._generators.capture(), False
        super()._reset(loader, first_iter)
        is_forked = self._owner != os.getpid()
        if self._epoch_log is not None:
            if is_forked:
                self._dataset_states |= self._epoch_log.last_states(self._epoch + 1)
            else:
                self._epoch_log.begin_epoch(self._epoch + 1)
        if is_forked or isinstance(self._dataset, _base.data_pipes):
            # The process that has forked this one goes on with the memory files. And PyTorch has given a data pipe the
            # seed of this epoch: workers get the seed with the dataset, so new workers are needed.
            self._make_engine(loader)
        self._batches = self._start(loader, None, None)

    def _next_data(self) -> Any:
        last = self._before_batch
        # Main does not load a batch again that was put back, so the known state stays the one before that batch.
        loads_batch = self._fetcher is not None and self._order is not None and not self._batches.has_put_back()
        if loads_batch and (snapshot := self._fetcher.snapshot()):
            self._before_batch = self._batches.first_unreturned() or 0, snapshot
        try:
            batch = next(self._batches)
        except StopIteration:
            # An error may have ended the epoch before its last batch.
            self._before_batch = last
            self._end_epoch()
            raise
        except Exception:
            # A lost setting may be the cause.
            self._warn_of_lost_settings()
            raise
        returned = batch
        try:
            self._warn_of_lost_settings()
        except BaseException:
            # The warning may be an exception.
            self._batches.put_back(returned)
            raise
        if type(batch) is _fetch.BatchWithState:
            batch = batch.batch
        if self._pin_memory:
            # PyTorch's allocator uses this memory again only after the copies to the device that read it. A slot is
            # used again as soon as the batch is dropped, so slots are not page-locked.
            try:
                batch = _base.pin_memory(batch, self._pin_memory_device)
            except BaseException as error:
                # Ctrl-C, or the exception of another signal's handler.
                if not isinstance(error, Exception) or _errors.is_of_signal_handler(error.__traceback__):
                    self._batches.put_back(returned)
                raise
        if type(returned) is _fetch.BatchWithState:
            self._dataset_states[returned.worker] = returned.state
        if self._num_workers > 0 and not self._last_pids:
            self._last_pids = self._batches.worker_pids()
        if self._order is not None:
            if self._in_order:
                # No later state needs the sampler's state from before this batch.
                self._order.sampler_states.pop(self._num_yielded, None)
            if self._order.has_keys and (first := self._batches.first_unreturned()) is not None:
                self._order.free(first)
        return batch

    def _warn_of_lost_settings(self) -> None:
        if self._lost_settings is not None and (text := self._lost_settings.warning()) is not None:
            _errors.warn(text, stacklevel=5)

    def _end_epoch(self) -> None:
        """Warns if the epoch had no batches and the epoch before had some. The loop of the program would go on without
        data."""
        loader = self._loader()
        if loader is None:
            return
        before, loader._last_returned = loader._last_returned, self._num_yielded
        if before > 0 and self._num_yielded == 0:
            _errors.warn(
                f"epoch {self._epoch} had no batches, and the epoch before had {before}: the dataset or the sampler"
                " returned no samples when the loader called its `__iter__` again; let `__iter__` begin at the start once all"
                " samples were returned, also after `load_state_dict` with a state from the end of an epoch; do not give the"
                " loader a generator, because it returns its samples only once"
            )

    def _state(self) -> dict[str, Any] | None:
        """Returns the part of the loader's state that concerns this epoch; ``None`` if the iterator is closed."""
        engine_state = self._batches.state()
        if engine_state is None:
            return None
        # This also holds after the end if an error has left a part of the epoch unread.
        is_within = engine_state.epoch == self._epoch
        states = dict(self._dataset_states) if is_within or self._persistent else {}
        if self._epoch_log is not None and self._persistent:
            states |= self._epoch_log.last_states(self._epoch if is_within else self._epoch + 1)
        if self._fetcher is not None and not (is_within and self._order is None and not engine_state.is_before_first_sample):
            # In the other cases the engine's state has the position of the dataset.
            snapshot = self._fetcher.snapshot()
            number, before = self._before_batch
            if is_within and self._order is not None and number == engine_state.first_unreturned_batch:
                # An error, or a signal during `next`, has left the position before a batch for which the dataset has
                # changed already.
                snapshot = before
            states = {} if snapshot is None else {0: snapshot}
        state: dict[str, Any] = {
            "datasets": {str(worker): _state.to_text(each) for worker, each in states.items()},
            "returned": self._num_yielded,
        }
        if is_within or self._persistent:
            state["base_seed"] = self._base_seed
        if not is_within:
            sampler = None if self._stateful_sampler is None else _state.sampler_state(self._stateful_sampler)
            return state | {"at": "between", "generators": self._generators.capture(), "sampler": sampler}
        order = self._order
        return state | {
            "at": "within",
            "generators": self._generators_at_start(),
            "engine": str(engine_state),
            "is_before_seed": self._is_before_seed,
            "sampler": order.sampler_state(engine_state.first_unreturned_batch) if order is not None else None,
            "first": order.first_batch if order is not None and self._stateful_sampler is not None else [],
            "has_drawn": order is not None and order.drawn > 0,
            "first_keys": order.first_keys_hash if order is not None else None,
            "dataset_generators": {
                str(worker): _state.to_text(each) for worker, each in self._dataset_generators().items()
            },
        }

    def _generators_at_start(self) -> Any:
        """Returns the generators from which the order of this epoch was drawn, or will be."""
        if self._order is None or self._order.capture_generators is None:
            return self._captured_generators
        return self._order.generators or self._order.capture_generators()

    @property
    def _workers(self) -> list[WorkerProcess]:
        """The workers, for programs that use PyTorch's private list. After the end of an epoch, the workers of that
        epoch."""
        if WorkerProcess is None:
            # The interpreter ends, and has removed what modules define. The workers have ended.
            return []
        self._last_pids = self._batches.worker_pids() or self._last_pids
        return [WorkerProcess(pid, self._close) for pid in self._last_pids]

    def _shutdown_workers(self) -> None:
        """Ends the workers, for programs that call PyTorch's private method."""
        self._close()

    def report(self) -> str | None:
        """Returns the report of the epoch so far: figures, and what the bottleneck is."""
        return self._batches.report()

    def digest(self) -> tuple[str, int] | None:
        """Returns the digest of the samples of the epoch so far, as 32 hexadecimal digits, and the number of these
        samples.

        The digest does not depend on the number of workers, the batch size or a resume. ``None`` without the option
        ``digest``, and once the iterator is closed.
        """
        return self._batches.digest()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._close()

    def _close(self) -> None:
        """Closes the iterator, and gives its state to the loader."""
        loader = self._loader()
        if loader is not None and loader._last_iterator_number == self._number:
            loader._last_iterator, loader._last_state = (lambda: None), self._state()
            self._number = -1
        self._batches.close()
