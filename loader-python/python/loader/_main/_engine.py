"""Makes the engine of an iterator of ``DataLoader``: its options, the order, and the pickle that main sends to the
workers."""

import functools
import json
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _native
from .._data import _epoch_log, _fetch, _keys, _stateful
from .._pickling import _batch_pickle, _by_value, _dataset_pickle, _shared_arrays
from .._program import _imports, _lost_settings, _script
from .._rust import _rust_dataset, _rust_loader
from .._workers import _fork, _worker_program
from . import _base
from ._base import _BaseDataLoaderIter, _DatasetKind
from ._order import IndexOrder, KeyOrder, Order

#: The engine's options, with the names of the section `[loader]` of a config file. `None` leaves the engine's default.
OPTION_NAMES = (
    "digest",
    "hedge",
    "max_bad_samples",
    "max_worker_deaths",
    "memory_limit",
    "metrics",
    "on_bad_sample",
    "on_worker_death",
    "raise_oom_score_adj",
    "sample_timeout",
    "shared_memory_limit",
    "trace",
    "trace_on_failure",
    "warn_after",
    "worker_affinity",
    "worker_memory_limit",
)


class EngineSetup(NamedTuple):
    """An engine, and the objects that main keeps as long as the engine: the engine calls them, or its workers open
    them."""

    engine: _native.Engine
    #: Makes the batch of the program from what a worker has sent.
    decode: Callable[..., Any]
    order: Order | None
    fetcher: _fetch.Fetcher | None = None
    epoch_log: _epoch_log.EpochLog | None = None
    arrays: _shared_arrays.ArrayFile | None = None
    sent: _by_value.SentObjects | None = None
    lost_settings: _lost_settings.LostSettings | None = None


def make(iterator: _BaseDataLoaderIter, loader: Any, states: dict[int, bytes]) -> EngineSetup:
    """Makes the engine of an iterator. ``states`` are the states of the dataset with which the workers resume, by
    worker."""
    if iterator._num_workers == 0 and iterator._timeout != 0:
        raise AssertionError("a loader without workers has no timeout: num_workers=0 needs timeout=0")
    if iterator._num_workers > 0 and loader.prefetch_factor == 0:
        raise AssertionError("prefetch_factor must be at least 1")
    rust = _rust_dataset.base_of(loader.dataset)
    return _python_setup(iterator, loader, states) if rust is None else _rust_setup(iterator, loader, *rust)


def engine_options(loader: Any) -> dict[str, Any]:
    is_map = loader._dataset_kind == _DatasetKind.Map
    options: dict[str, Any] = {"num_workers": loader.num_workers, "in_order": loader.in_order}
    if loader._is_auto and (is_map or _rust_dataset.base_of(loader.dataset) is not None):
        options["num_workers"] = {"auto": {"max": loader.num_workers}} if is_map else "auto"
    if loader.num_workers > 0:
        options |= {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": bool(loader.persistent_workers),
            "move_tasks": loader.move_tasks,
        }
        if loader.timeout > 0:
            options["timeout"] = loader.timeout
    if loader._dataset_kind == _DatasetKind.Iterable:
        options |= {
            "batch_size": loader.batch_size or 1,
            "drop_last": loader.drop_last,
            "shards": max(loader.num_workers, 1),
        }
    given = {name: getattr(loader, name) for name in OPTION_NAMES}
    return options | {name: _as_json(value) for name, value in given.items() if value is not None}


def _rust_setup(
    iterator: _BaseDataLoaderIter,
    loader: Any,
    dataset: _rust_dataset.RustDataset | _rust_dataset.RustStream,
    subsets: list[Any],
) -> EngineSetup:
    """Makes the engine of a dataset that workers load without Python code."""
    _check_rust_arguments(loader)
    order = None
    if iterator._dataset_kind == _DatasetKind.Map:
        order = IndexOrder(iterator._index_sampler, iterator._auto_collation, len(dataset), subsets)
    options = engine_options(loader) | {"seed": iterator._base_seed}
    # Each sample draws from a generator of its own, so any worker may load a batch.
    options.pop("move_tasks", None)
    engine = _rust_loader.engine(
        dataset,
        json.dumps(options),
        auto_collation=iterator._auto_collation,
        begin=order.begin if order else None,
        batches=_length(loader._index_sampler) if order else 0,
        sampler=type(loader._index_sampler).__qualname__,
        observers=loader._observers[1],
    )
    return EngineSetup(engine, dataset._convert, order)


def _check_rust_arguments(loader: Any) -> None:
    """Raises an error if the loader needs Python code in the workers."""
    is_default_collation = loader.collate_fn in _base.default_collations
    for name, is_given in (
        ("collate_fn", not is_default_collation),
        ("worker_init_fn", loader.worker_init_fn is not None),
    ):
        if is_given:
            raise ValueError(
                f"{name} is Python code, and workers load a Rust dataset without Python code: leave it out, and change"
                " the batch in the training step"
            )


def _python_setup(iterator: _BaseDataLoaderIter, loader: Any, states: dict[int, bytes]) -> EngineSetup:
    is_map = iterator._dataset_kind == _DatasetKind.Map
    is_local = iterator._num_workers == 0
    if not is_local:
        _native.open_closed_streams()
    keys = _keys.KeyList() if is_local else _keys.KeyFile()
    fetcher = _open_fetcher(iterator, keys) if is_local else None
    epoch_log = None if is_local or is_map else _epoch_log.EpochLog()
    order = KeyOrder(iterator._index_sampler, iterator._auto_collation, keys) if is_map else None
    to_workers = _ToWorkers() if is_local else _to_workers(iterator, loader, states, keys, epoch_log)
    engine = _native.Engine(
        _EngineParts(
            pickle=to_workers.pickle,
            files=[file.fileno() for file in to_workers.files],
            opened=fetcher,
            fingerprint=_fingerprint(loader.dataset),
            begin=order.begin if order else None,
            batches=_length(loader._index_sampler) if is_map else 0,
            sampler_fingerprint=_class_name(loader._index_sampler),
            seed_samples=loader.seed_samples,
            options=json.dumps(engine_options(loader) | {"seed": iterator._base_seed}),
            start=to_workers.start,
            is_stateful_map=is_map and _stateful.is_stateful(loader.dataset),
            observers=loader._observers[1],
        )
    )
    sent = keys.sent if isinstance(keys, _keys.KeyFile) else None
    kept = to_workers.arrays, sent, to_workers.lost_settings
    return EngineSetup(engine, _batch_pickle.decode, order, fetcher, epoch_log, *kept)


def _open_fetcher(iterator: _BaseDataLoaderIter, keys: _keys.KeyList) -> _fetch.Fetcher:
    dataset = iterator._dataset
    if isinstance(dataset, _base.data_pipes):
        _base.apply_sharding(dataset, iterator._world_size, iterator._rank)
    return _fetch.Fetcher(dataset, iterator._collate_fn, iterator._auto_collation, keys, None)


class _ToWorkers(NamedTuple):
    """How the workers start, and how they get the dataset and the user's functions."""

    #: ``None`` without workers; otherwise the process that main has forked, or the interpreter and its arguments.
    start: "_native.ForkedTemplate | _worker_program.Command | None" = None
    #: ``None`` without workers, and empty if they are forks of main.
    pickle: bytes | None = None
    files: Sequence[Any] = ()
    arrays: _shared_arrays.ArrayFile | None = None
    lost_settings: _lost_settings.LostSettings | None = None


def _to_workers(
    iterator: _BaseDataLoaderIter,
    loader: Any,
    states: dict[int, bytes],
    keys: _keys.KeyFile,
    epoch_log: _epoch_log.EpochLog | None,
) -> _ToWorkers:
    method = _worker_program.start_method(loader.multiprocessing_context)
    worker_init_fn = loader.worker_init_fn
    if isinstance(iterator._dataset, _base.data_pipes):
        worker_init_fn = functools.partial(
            _base.sharding_worker_init_fn, worker_init_fn, iterator._world_size, iterator._rank
        )
    settings = {
        "base_seed": iterator._base_seed,
        "num_workers": iterator._num_workers,
        "auto_collation": iterator._auto_collation,
        "is_map": iterator._dataset_kind == _DatasetKind.Map,
        "states": states,
        "is_persistent": bool(loader.persistent_workers),
        "torch": _base.has_torch,
        "default_dtype": _base.default_dtype(),
    }
    # If `pickle` refuses a function, main has not pickled a large dataset before that for nothing.
    value = iterator._collate_fn, worker_init_fn, iterator._dataset
    if method == "fork":
        if iterator._num_workers > 1:
            _fork.warn_of_open_files(iterator._dataset)
        # Workers have the classes and functions of the script.
        keys.needs_main, keys.sent = True, _by_value.NoSentObjects()
        files = _dataset_pickle.WorkerFiles(
            [file.fileno() for file in keys.files], None if epoch_log is None else epoch_log.fileno()
        )
        return _ToWorkers(_fork.fork_template(_fork.WorkerSetup(settings, value, files)), b"")
    program = _imports.modules_of_program()
    settings["imports"] = _imports.modules_for_workers(method, program)
    lost_settings = _lost_settings.LostSettings(method, program) if loader.warn_lost_settings else None
    if lost_settings is not None:
        settings["values"] = lost_settings.values
    others = {"epoch_log": epoch_log, "lost_settings": lost_settings}
    others = {name: file for name, file in others.items() if file is not None}
    arrays = _shared_arrays.ArrayFile()
    pickled, files = _dataset_pickle.dumps(value, settings, arrays, keys, others)
    return _ToWorkers(_worker_program.command(method), pickled, files, arrays, lost_settings)


class _EngineParts:
    """What an engine is made from; see `Parts` in `engine.rs`."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def _fingerprint(dataset: Any) -> str:
    return f"{_class_name(dataset)} of {_length(dataset)}"


def _class_name(value: Any) -> str:
    module = type(value).__module__
    if module.partition(".")[0] == _script.PACKAGE:
        # A state must not depend on the place of a class in this package.
        module = _script.PACKAGE
    return f"{module}.{type(value).__qualname__}"


def _length(value: Any) -> int:
    """Returns the length, and 0 if there is none. PyTorch does not call ``len`` here, so an exception of ``len`` must
    not end the epoch."""
    try:
        return len(value)
    except Exception:
        return 0


def _as_json(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        # The CPUs of a worker.
        return ",".join(map(str, sorted(value)))
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return as_integer(value)


def as_integer(value: Any) -> Any:
    """Returns an integer of another library, such as one of NumPy, as an ``int``, and any other value as it is."""
    is_other = not isinstance(value, (bool, int)) and hasattr(type(value), "__index__")
    return operator.index(value) if is_other else value
