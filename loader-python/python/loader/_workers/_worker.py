"""The Python code of a worker: its entry point, and the function with which the engine opens the dataset."""

import os
import random
import signal
import sys
from typing import Any, NoReturn

from .. import _native, _worker_info
from .._data import _keys
from .._pickling import _dataset_pickle


def main() -> NoReturn:
    """Serves as a worker until main does not need it any more."""
    _worker_info.is_worker = True
    # Python's own handler would raise `KeyboardInterrupt` in the user's code, and Ctrl-C is meant for main. `serve`
    # installs a handler that does nothing.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = _native.serve()
    if util := sys.modules.get("multiprocessing.util"):
        # As a process of `multiprocessing` does at its end. The items that user code has put into queues may not be
        # written yet.
        util._exit_function()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    # The normal end of the interpreter would wait for threads that user code has started.
    os._exit(code)


def open_dataset(memory: Any, files: list[int], worker: int) -> Any:
    """Opens the dataset of main. Main has sent it in ``memory``, and it refers to ``files``; or this process is a fork
    of main and has the dataset."""
    fork = sys.modules.get("loader._workers._fork")
    setup = fork.inherited if fork and fork.inherited else _dataset_pickle.loads(memory, files)
    settings, (collate_fn, worker_init_fn, dataset), own_files = setup
    base_seed, num_workers = settings["base_seed"], settings["num_workers"]
    if settings["torch"]:
        import torch

        from .._data import _collate_torch as collation

        torch.set_num_threads(1)
        torch.set_default_dtype(settings["default_dtype"])
    else:
        from .._data import _collate_numpy as collation
    _seed_generators(base_seed, worker)
    _worker_info.set_worker_info(_worker_info.WorkerInfo(worker, num_workers, base_seed + worker, dataset))
    if worker_init_fn is not None:
        worker_init_fn(worker)

    from .._data import _fetch
    from .._pickling import _batch_pickle

    if own_files.lost_settings is not None:
        if worker == 0:
            from .._program import _lost_settings

            _lost_settings.compare(settings["values"], own_files.lost_settings)
        os.close(own_files.lost_settings)

    collation.prepare_worker()
    keys = _keys.KeyReader(own_files.keys)
    collate_fn = collation.in_worker(collate_fn)
    fetcher = _fetch.Fetcher(dataset, collate_fn, settings["auto_collation"], keys, _batch_pickle.encode)
    fetcher.set_worker(worker, settings["is_map"], own_files.epoch_log, settings["is_persistent"])
    fetcher.restore(settings["states"].get(worker))
    return fetcher


def _seed_generators(base_seed: int, worker: int) -> None:
    """Seeds the generators of Python, PyTorch and NumPy as PyTorch does in its workers, if these libraries are
    imported."""
    seed = base_seed + worker
    random.seed(seed)
    if sys.modules.get("torch"):
        import torch

        torch.manual_seed(seed)
    if sys.modules.get("numpy"):
        import numpy

        # PyTorch computes the same numbers: its `_generate_state` is this class of NumPy, written in Python.
        state = numpy.random.SeedSequence([worker, base_seed & 0xFFFF_FFFF, base_seed >> 32, 0])
        numpy.random.seed(state.generate_state(4))
