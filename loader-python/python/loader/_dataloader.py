"""The loader with PyTorch's interface."""

import functools
import inspect
import json
import multiprocessing
import os
import random
import shutil
import sys
import time
import weakref
from multiprocessing import spawn, util
from typing import Any, Literal, TypeVar

from . import _base, _collate, _exit, _fetch, _info, _keys, _native, _pickling, _rust, _seeds
from ._base import _BaseDataLoaderIter, _DatasetKind
from ._order import Order

#: What the template of workers imports if main has imported it.
_LARGE_LIBRARIES = ("numpy", "torch", "torchvision")

#: Version of the format of states.
_STATE_VERSION = 1

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
        num_workers: As in PyTorch, or ``"auto"``: the loader measures, and uses as many workers as are of use, at most one per
            CPU. Set ``persistent_workers`` too, so that an epoch begins with what the epoch before has found.
        on_bad_sample: What happens if ``dataset[i]`` raises: ``"error"`` (default) raises it in place of the batch, ``"skip"``
            leaves the sample out, ``"replace"`` takes another one.
        max_bad_samples: Maximum number of bad samples in an epoch; one more ends it. 10 by default.
        sample_timeout: Maximum seconds for one sample; a worker that takes longer is killed and replaced. No limit by default.
        on_worker_death: ``"restart"`` (default) replaces a worker that has died, ``"fail"`` raises ``RuntimeError`` as PyTorch.
        max_worker_deaths: Maximum number of deaths of a worker in a row; after one more it is not replaced. 10 by default.
        seed_samples: True to seed the generators of Python, PyTorch and NumPy before each sample, from the loader's seed, the
            epoch and the index. Then the samples of a map-style dataset are the same with any number of workers, after a
            worker has died, and after :meth:`load_state_dict`. False by default: a worker seeds them once, as in PyTorch.
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
        self.seed_samples = seed_samples
        self.move_tasks = seed_samples if move_tasks is None else move_tasks
        self._begun_epochs = 0
        self._resume_from: dict[str, Any] | None = None
        self._last_iterator: Any = lambda: None
        # The position at which the last iterator was dropped, as by `break`, and which iterator that is.
        self._last_position: dict[str, Any] | None = None
        self._last_number = 0
        is_python = _rust.base_of(dataset) is None
        if num_workers > 0 and is_python and not _info.is_worker and _start_method(self) != "spawn":
            _native.start_template(_interpreter(), _template_arguments())
        arguments = locals()
        for name in _ENGINE_OPTIONS:
            setattr(self, name, arguments[name])

    def _get_iterator(self) -> "_Iterator":
        if self.num_workers > 0:
            if _info.is_worker:
                raise RuntimeError(
                    "a worker process has begun to load with workers of its own: put the lines that begin to train under"
                    ' `if __name__ == "__main__":`, because workers import this script, or install cloudpickle; a dataset'
                    " that has a loader must load with num_workers=0"
                )
            self.check_worker_number_rationality()
        return _Iterator(self)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, which is the position in the epoch: after the batch that the last iterator has returned last, however many batches are
        loaded ahead. It can be pickled and saved with ``torch.save``, and contains the random number generators.
        """
        iterator = self._last_iterator()
        position = iterator._position() if iterator is not None else self._last_position
        if position is None and self._resume_from is not None:
            return self._resume_from
        return {"version": _STATE_VERSION, "begun_epochs": self._begun_epochs, "position": position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iterator continue from a position that :meth:`state_dict` has returned, with the same dataset and
        options. The number of workers of a map-style dataset may be another one. The order of the rest is the same,
        if the sampler draws before its first batch, as those of PyTorch do.

        Raises:
            ValueError: If ``state_dict`` is not a state of a loader, or has a format version that this package does not read. The
                next ``iter`` raises it if the loader has another dataset or other options than the state.
        """
        if not isinstance(state_dict, dict) or "position" not in state_dict:
            raise ValueError("this is no state of a loader: it must come from DataLoader.state_dict()")
        if state_dict.get("version") != _STATE_VERSION:
            raise ValueError(f"this state has version {state_dict.get('version')}, and this package reads {_STATE_VERSION}: load it with the version of the package that wrote it")
        self._begun_epochs = state_dict["begun_epochs"]
        self._resume_from = state_dict
        self._last_iterator, self._last_position = (lambda: None), None
        self._last_number += 1
        # Persistent workers belong to the epoch before.
        self._iterator = None

    def _generators(self) -> list[_base.Generator]:
        """Returns the generators that determine the order of an epoch."""
        owners = (self, self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
        found = (getattr(owner, "generator", None) for owner in owners)
        return list({id(generator): generator for generator in found if isinstance(generator, _base.Generator)}.values())

    def _engine_options(self) -> dict[str, Any]:
        workers = "auto" if self._is_auto else self.num_workers
        options: dict[str, Any] = {"num_workers": workers, "in_order": self.in_order}
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
        resume = _Resume(loader)
        before = resume.generators()
        super().__init__(loader)
        if resume.state is not None:
            self._base_seed = resume.base_seed
        self._make_engine(loader)
        with resume:
            # A generator function draws its first numbers later, when the engine asks for a batch.
            self._began_with = before if not inspect.isgenerator(self._sampler_iter) else resume.generators()
            if self._num_workers > 0 or resume.state is not None:
                # PyTorch, too, begins the sampler once more for workers.
                self._began_with = resume.generators()
                self._sampler_iter = iter(self._index_sampler)
            self._batches = self._start(loader, resume)

    def _make_engine(self, loader: DataLoader) -> None:
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("a loader without workers has no timeout: num_workers=0 needs timeout=0")
        if self._num_workers > 0 and loader.prefetch_factor == 0:
            raise AssertionError("prefetch_factor must be at least 1")
        rust = _rust.base_of(loader.dataset)
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
            is_unbatched=not self._auto_collation,
            begin=self._order.begin if self._order else None,
            batches=_length(loader._index_sampler) if self._order else 0,
            sampler=type(loader._index_sampler).__qualname__,
        )

    def _python_engine(self, loader: DataLoader) -> _native.Engine:
        is_map = self._dataset_kind == _DatasetKind.Map
        is_local = self._num_workers == 0
        keys = _keys.KeyList() if is_local else _keys.KeyFile()
        is_template = _start_method(loader) != "spawn"
        self._order = _keys.KeyOrder(self._index_sampler, self._auto_collation, keys) if is_map else None
        return _native.Engine(
            _Parts(
                pickle=None if is_local else self._pickle(loader, keys.path),
                opened=self._opened(keys) if is_local else None,
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

    def _pickle(self, loader: DataLoader, keys: str) -> bytes:
        worker_init_fn = loader.worker_init_fn
        if isinstance(self._dataset, _base.data_pipes):
            worker_init_fn = functools.partial(_base.sharding_worker_init_fn, worker_init_fn, self._world_size, self._rank)
        settings = {
            "base_seed": self._base_seed,
            "num_workers": self._num_workers,
            "auto_collation": self._auto_collation,
            "keys": keys,
            "torch": _base.has_torch,
            "default_dtype": _base.default_dtype(),
        }
        return _pickling.dumps((self._dataset, self._collate_fn, worker_init_fn), settings)

    def _start(self, loader: DataLoader, resume: "_Resume") -> _native.BatchIterator:
        if self._order is not None:
            self._order.set_begun(self._sampler_iter)
        if resume.state is not None:
            batches = self._engine.resume(resume.state, self._loads)
            self._num_yielded = resume.returned
        else:
            batches = self._engine.iterate(loader._begun_epochs, self._loads)
            loader._begun_epochs += 1
        # Only now: a state that does not fit must not be forgotten.
        loader._resume_from = None
        self._is_over = False
        self._last_pids: list[int] = []
        self._generators = loader._generators()
        loader._last_iterator, loader._last_position = weakref.ref(self), None
        loader._last_number += 1
        self._loader, self._number = weakref.ref(loader), loader._last_number
        _exit.close_at_exit(batches)
        return batches

    def _reset(self, loader: DataLoader, first_iter: bool = False) -> None:
        self._batches.close()
        resume = _Resume(loader)
        self._began_with = resume.generators()
        super()._reset(loader, first_iter)
        if isinstance(self._dataset, _base.data_pipes):
            # PyTorch has given it the seed of this epoch. Workers get it with the dataset, so they cannot stay.
            self._make_engine(loader)
        self._batches = self._start(loader, resume)

    def _next_data(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_over = True
            raise
        if self._num_workers > 0 and not self._last_pids:
            self._last_pids = self._batches.worker_pids()
        if self._order is not None and self._order.has_keys and (first := self._batches.first_unreturned()) is not None:
            self._order.free(first)
        # PyTorch's allocator uses this memory again only after the copies to the device that read it. A slot is used
        # again as soon as the batch is dropped, so slots are not page-locked.
        return _base.pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch

    def _position(self) -> dict[str, Any] | None:
        """Returns what the state of the loader says of this epoch; `None` once the iterator is closed."""
        state = self._batches.state()
        if state is None:
            return None
        order = self._order
        is_over = self._is_over or (order is not None and order.is_exhausted and self._num_yielded >= order.given)
        return {
            "engine": state,
            "base_seed": self._base_seed,
            "returned": self._num_yielded,
            "is_over": is_over,
            # At the end of an epoch the next one begins with the generators as they are now.
            "generators": [_base.generator_state(generator) for generator in self._generators] if is_over else self._began_with[0],
            "global_generators": None if is_over else self._began_with[1],
        }

    @property
    def _workers(self) -> list["_Worker"]:
        """The workers, as programs that use PyTorch's private list expect them; at the end of an epoch those that were there."""
        self._last_pids = self._batches.worker_pids() or self._last_pids
        return [_Worker(pid) for pid in self._last_pids]

    def _shutdown_workers(self) -> None:
        """Ends the workers, for programs that call PyTorch's private method."""
        self._batches.close()

    def report(self) -> str | None:
        """Returns the report of the epoch so far: figures, and what the bottleneck is."""
        return self._batches.report()

    def __del__(self) -> None:
        batches = getattr(self, "_batches", None)
        if batches is None:
            return
        loader = self._loader()
        if loader is not None and loader._last_number == self._number:
            loader._last_position = self._position()
        batches.close()


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


class _Resume:
    """What a new iterator continues from, if anything. In its ``with`` block the random number generators are those from which the
    epoch began, so that the sampler gives the same order again. Afterwards the global ones are as they were before."""

    def __init__(self, loader: DataLoader) -> None:
        position = (loader._resume_from or {}).get("position") or {"is_over": True, "generators": None}
        self._generators = loader._generators()
        self._begun: list[Any] | None = position["generators"]
        if self._begun is not None and len(self._generators) != len(self._begun):
            raise ValueError(
                f"the state has {len(self._begun)} random number generators, and the loader has {len(self._generators)}: make the"
                " loader with the same `sampler` and `generator` as before"
            )
        is_over = position["is_over"]
        self._begun_global = None if is_over else position["global_generators"]
        if is_over:
            self._set_generators()
        self.state: str | None = None if is_over else position["engine"]
        self.base_seed: int = 0 if is_over else position["base_seed"]
        self.returned: int = 0 if is_over else position["returned"]

    def generators(self) -> tuple[list[Any], dict[str, Any]]:
        """Returns the states of the loader's generators and of the global ones, as they are now."""
        return [_base.generator_state(generator) for generator in self._generators], _seeds.capture()

    def _set_generators(self) -> None:
        for generator, begun in zip(self._generators, self._begun or []):
            _base.set_generator_state(generator, begun)

    def __enter__(self) -> None:
        if self._begun_global is not None:
            self._before = _seeds.capture()
            _seeds.restore(self._begun_global)
            self._set_generators()

    def __exit__(self, *_raised: object) -> None:
        if self._begun_global is not None:
            _seeds.restore(self._before)


class _Parts:
    """What an engine is made from; see `Parts` in `engine.rs`."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


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
    """Returns the length, and 0 if there is none."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return 0


def _as_json(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value
