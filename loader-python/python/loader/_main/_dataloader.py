"""The class :class:`DataLoader`: its arguments, and its methods for the state."""

import os
from typing import Any, Literal, TypeVar

from .. import _native, _worker_info
from .._data import _stateful
from .._program import _script
from .._rust import _rust_dataset
from .._workers import _worker_program
from . import _base, _engine, _iterator, _state
from ._base import _DatasetKind

if _base.has_torch:
    _rust_dataset.register_stream()

_Batch = TypeVar("_Batch", covariant=True)


class DataLoader(_base.DataLoader[_Batch]):
    """Loads batches of a dataset, as ``torch.utils.data.DataLoader`` does, with worker processes that are replaced when
    they die.

    The arguments up to ``in_order`` are PyTorch's, with the same defaults, checks, warnings and exceptions. The order
    of the samples and the seeds of the workers are PyTorch's too, number for number.

    The loader replaces a worker that dies, and loads its batches again. The batches of the epoch stay the same, unless
    samples draw random numbers: a new worker begins with the seed of the one before. Set ``seed_samples`` for such
    datasets.

    Args:
        dataset: A map-style dataset, with ``__getitem__`` and ``__len__``, or an iterable dataset, with ``__iter__``.
        batch_size: Number of samples in a batch, 1 by default. ``None`` returns single samples.
        shuffle: True to draw a new order in each epoch. False by default.
        sampler: Gives the keys of the samples, in place of ``shuffle``.
        batch_sampler: Gives the lists of keys of the batches, in place of ``batch_size``, ``shuffle``, ``sampler`` and
            ``drop_last``.
        num_workers: As in PyTorch, or ``"auto"``: the loader measures, and finds the number of workers. Its maximum is
            four per CPU, but at least 16 and at most 62. Set ``persistent_workers`` too, so that an epoch begins with
            the number that the epoch before has found. An iterable dataset of Python objects has one worker per CPU
            with ``"auto"``, because it shares its samples among a fixed number of workers. 0, the default, loads in
            this process.
        collate_fn: Makes a batch of a list of samples. By default, tensors, numbers and arrays are stacked.
        pin_memory: True to return batches in pinned memory. False by default.
        drop_last: True to leave out a last batch with fewer samples. False by default.
        timeout: Maximum seconds of waiting for a batch. 0, the default, waits without limit.
        worker_init_fn: Called in each worker with the worker's number, before the worker loads.
        multiprocessing_context: A context of ``multiprocessing`` or the name of a start method. With ``"fork"``, workers
            are forks of this process; with ``"forkserver"``, of a process that has imported the script of this one;
            with ``"spawn"``, each is a new Python process. By default, the start method of ``multiprocessing``. Workers
            of Rust datasets are always new processes.
        generator: Gives the random numbers of the order, and the base seed of the workers. By default they are from
            PyTorch's global generator.
        prefetch_factor: Number of batches that each worker loads ahead, 2 by default.
        persistent_workers: True to keep the workers from one epoch to the next. False by default.
        pin_memory_device: The device for whose copies memory is pinned.
        in_order: False to return batches as workers finish them. True by default.
        warn_lost_settings: True (default) to warn if workers that are not forks of this process lack settings that this
            process has.
        on_bad_sample: What happens if ``dataset[i]`` raises: ``"error"`` (default) raises it in place of the batch,
            ``"skip"`` leaves the sample out, ``"replace"`` takes another one.
        max_bad_samples: Maximum number of bad samples in an epoch; one more ends it. 10 by default.
        sample_timeout: Maximum seconds for one sample; a worker that takes longer is killed and replaced. No limit by
            default.
        on_worker_death: ``"restart"`` (default) replaces a worker that has died, ``"fail"`` raises ``RuntimeError`` as
            PyTorch.
        max_worker_deaths: Maximum number of deaths of a worker in a row; after one more it is not replaced. 10 by
            default.
        seed_samples: True to seed the generators of Python, PyTorch and NumPy before each sample, from the loader's
            seed, the epoch and the index. Then the samples of a map-style dataset are the same with any number of
            workers, after a worker has died, and after :meth:`load_state_dict`. ``__getitems__`` is then called for one
            index at a time. False by default: a worker seeds them once, as in PyTorch.
        move_tasks: True if idle workers take over batches that wait behind a slow one. By default it is equal to
            ``seed_samples``. If it is false, worker *i* modulo ``num_workers`` loads batch *i*, as in PyTorch, and
            samples draw PyTorch's random numbers from the generators of their worker.
        hedge: True to give a late batch to a second worker too. False by default.
        raise_oom_score_adj: True (default) to make the kernel's OOM killer prefer workers to main. False leaves workers
            the ``oom_score_adj`` of main.
        memory_limit: Maximum bytes of memory of the loader, or a text such as ``"4 GiB"``. By default half of the
            memory that this process may use.
        shared_memory_limit: Maximum bytes of shared memory for batches, by default half of ``memory_limit``.
        worker_memory_limit: Maximum bytes of private memory that a worker allocates after its start; a worker that uses
            more is replaced. No limit by default.
        worker_affinity: CPUs of each worker: ``"inherit"`` (default), ``"share"``, ``"spread"``, ``"pack"``, or a list
            of sets, such as ``[{0, 1}, {2, 3}]``: worker *i* has set *i* modulo their number.
        warn_after: Seconds of waiting for a batch after which a warning names the worker that loads it, 30 by default.
        digest: True to compute a digest of the samples of the epoch. False by default.
        trace: File for a trace of main and the workers.
        trace_on_failure: File for a trace of the last events, written if an error ends the epoch or a worker dies.
        metrics: Address at which statistics are served for Prometheus, such as ``"127.0.0.1:9100"``. With the port 0,
            the system chooses a port, which :attr:`metrics_address` shows.
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
        warn_lost_settings: bool = True,
        on_bad_sample: str | None = None,
        max_bad_samples: int | None = None,
        sample_timeout: float | None = None,
        on_worker_death: str | None = None,
        max_worker_deaths: int | None = None,
        seed_samples: bool = False,
        move_tasks: bool | None = None,
        hedge: bool | None = None,
        raise_oom_score_adj: bool | None = None,
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
        batch_size, num_workers, prefetch_factor = map(
            _engine.as_integer, (batch_size, num_workers, prefetch_factor)
        )
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
            # `get_worker_info` shows the maximum.
            self.num_workers = min(max(4 * self.num_workers, 16), 62)
        self.warn_lost_settings = warn_lost_settings
        self.seed_samples = seed_samples
        self.move_tasks = seed_samples if move_tasks is None else move_tasks
        #: The statistics, the trace and the metrics, which the engines of all iterators share, and their options.
        self._observers: tuple[tuple[Any, ...], _native.Observers] | None = None
        self._next_epoch = 0
        self._loaded_state: dict[str, Any] | None = None
        self._last_iterator: Any = lambda: None
        # The state when the program has dropped the last iterator, for example by `break`.
        self._last_state: dict[str, Any] | None = None
        self._last_iterator_number = 0
        # True if the sampler has loaded a state from its end, and has given no batch since.
        self._sampler_is_at_end = False
        # Number of batches in the last epoch that has ended.
        self._last_returned = 0
        is_python = _rust_dataset.base_of(dataset) is None
        if (
            num_workers > 0
            and is_python
            and not (_worker_info.is_worker or _script.is_being_imported())
            and _worker_program.start_method(self.multiprocessing_context) == "forkserver"
        ):
            _native.start_template(_worker_program.interpreter(), _worker_program.template_arguments())
        arguments = locals()
        for name in _engine.OPTION_NAMES:
            setattr(self, name, arguments[name])

    def _get_iterator(self) -> "_iterator.LoaderIterator":
        if self.num_workers > 0:
            if _worker_info.is_worker:
                try:
                    import cloudpickle  # noqa: F401

                    other = ""
                except ImportError:
                    other = ", or install cloudpickle"
                raise RuntimeError(
                    "a worker process has begun to load with workers of its own: put the lines that begin to train"
                    f' under `if __name__ == "__main__":`, because workers import this script{other}; a dataset that'
                    " has a loader must load with num_workers=0"
                )
            if not self._is_auto:
                self.check_worker_number_rationality()
        observed = (self.trace, self.trace_on_failure, self.metrics)
        if self._observers is None or self._observers[0] != observed:
            self._observers = observed, _native.Observers()
        return _iterator.LoaderIterator(self)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a pickle or a copy of the loader has: everything except its iterators and their positions, and
        its statistics."""
        # `type(None)` is a function that returns `None` and, unlike a lambda, can be pickled.
        left_out = {"_iterator": None, "_last_iterator": type(None), "_last_state": None, "_observers": None}
        return self.__dict__ | left_out

    @property
    def metrics_address(self) -> str | None:
        """The address of the option ``metrics``, with the port that the system chose if the port was 0. ``None`` before
        the first iteration. The loader and its iterators keep the port: it is free once the program has dropped all of
        them."""
        return None if self._observers is None else self._observers[1].metrics_address()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state: the position after the batch that the last iterator has returned last, however many
        batches workers have loaded ahead. The state consists of JSON values, and always has the same keys. Its content
        has the random number generators that determine the order, and the states of a dataset and a sampler that have
        ``state_dict`` and ``load_state_dict``.

        After the last batch the state still belongs to the epoch, and the iterator that continues from it has no
        batches. Once the iterator has ended, the state is the beginning of the next epoch.

        Raises:
            RuntimeError: If the dataset or the sampler has ``state_dict`` and ``load_state_dict``, and ``state_dict``
                has raised an exception, which is the cause, or has returned what ``pickle`` cannot write.
        """
        if self._loaded_state is not None:
            return _state.written(self._loaded_state)
        iterator = self._last_iterator()
        state = iterator._state() if iterator is not None else self._last_state
        if state is None or (iterator is None and state["at"] != "within"):
            state = (state or self._before_epoch()) | {"generators": _state.OrderGenerators(self).capture()}
        state = {"epochs": self._next_epoch, "num_workers": self.num_workers} | state
        is_stream = self._dataset_kind == _base._DatasetKind.Iterable
        _state.raise_error(state, is_python_stream=is_stream and _rust_dataset.base_of(self.dataset) is None)
        return _state.written(state)

    def _before_epoch(self) -> dict[str, Any]:
        """Returns the states of the dataset and the sampler, for a loader that has had no iterator."""
        dataset = _stateful.dataset_state(self.dataset) if self.num_workers == 0 else None
        datasets = {} if dataset is None else {"0": _state.to_text(dataset)}
        sampler = _state.sampler_of(self)
        return {
            "at": "between",
            "returned": 0,
            "datasets": datasets,
            "sampler": _state.sampler_state(sampler) if sampler is not None else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator continue from a position that :meth:`state_dict` has returned, with the same dataset
        and options. The number of workers of a map-style dataset may be another one, unless it has ``state_dict``. The
        rest of the epoch has the same order if the sampler draws its random numbers before its first batch, as
        PyTorch's samplers do, or if it has ``state_dict`` and ``load_state_dict``.

        The state contains pickles, so load only states that you trust.

        Raises:
            ValueError: If ``state_dict`` is not a state of a loader, has a format version that this package does not
                read, or was damaged or edited. The next ``iter`` raises it if the loader has another dataset, other
                options, or another number of workers where that matters; in that case it is an ``AssertionError`` too,
                as torchdata raises.
        """
        state = _state.read(state_dict)
        if (iterator := self._last_iterator()) is not None:
            iterator._batches.note_loaded_state()
        self._next_epoch, self._loaded_state = state["epochs"], state
        self._last_returned = state["returned"] if state["at"] != "within" else 0
        self._last_iterator, self._last_state = (lambda: None), None
        self._last_iterator_number += 1
        # The next epoch starts new workers, because persistent ones belong to the epoch before.
        self._iterator = None
