"""Forks main beside busy threads, and kills the processes that main has forked.

    python loader-python/tests/soak_fork.py FORKS BATCHES [SEED]

First, `iter` forks main FORKS times, while other threads of main load, print, log, import, allocate, compute, and change
the environment. Workers do the same things, so a lock that a fork has left locked would stop them. If one epoch takes
longer than `FORK_LIMIT`, the program prints where each thread is, and ends.

Then it loads BATCHES batches, while another thread kills workers, the templates that fork them, and the spares of the
templates. Each epoch must have the batches of an undisturbed one. When template and spare are dead, the loader raises
its error, and another loader resumes from the state. At the end no process and no zombie may be left. Lines that begin
with `soak:` have the figures.
"""

import collections
import ctypes
import decimal
import faulthandler
import gc
import importlib
import itertools
import logging
import os
import random
import sys
import threading
import time
import warnings
from pathlib import Path

# While another thread computes with OpenBLAS in several threads, `os.fork` may never return.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy
import processes
import soak
import torch
from torch_datasets import Rows, Stream

from loader import DataLoader

FORK_LIMIT = 120  # seconds
EPOCH_LIMIT = 300  # seconds
SAMPLES, SHARDS = 1000, (200, 300, 250, 250)
INTERVAL = 0.3  # seconds between kills, on average
PR_SET_CHILD_SUBREAPER = 36
#: Modules that nobody else in this program imports.
MODULES = ("colorsys", "chunk", "sndhdr", "nturl2path", "this_module_does_not_exist")

log = logging.getLogger("soak")


def use_everything(number: int) -> None:
    """Takes the locks that a thread of main may hold when `iter` forks."""
    print("sample", number)
    log.warning("sample %d", number)
    os.environ[f"SOAK_{number % 8}"] = str(number)
    assert os.environ.get(f"SOAK_{number % 8}") is not None
    for size in (100, 10_000, 1_000_000):
        assert len(bytearray(size)) == size
    matrix = numpy.full((64, 64), 2.0)
    assert (matrix @ matrix)[0, 0] == 256 and 0 <= numpy.random.random() < 1
    assert decimal.Decimal(number).sqrt() >= 0


class Everything(Rows):
    def __getitem__(self, index):
        use_everything(index)
        return super().__getitem__(index)


def check(loader, expected):
    found = [row[0].item() for batch in loader for row in batch]
    assert found == expected, found


def load(number: int) -> None:
    loader = DataLoader(Rows(12), batch_size=4, num_workers=1, multiprocessing_context="fork", timeout=FORK_LIMIT)
    if number % 2 == 0:
        check(loader, list(range(12)))
    else:
        batches = iter(loader)
        next(batches)


def convert(number: int) -> None:
    """Converts and pins batches, if there is a device for which pinned memory is of use."""
    loader = DataLoader(Rows(40), batch_size=4, num_workers=1, pin_memory=torch.cuda.is_available(), timeout=FORK_LIMIT)
    for batch in loader:
        assert batch.to(torch.float64).numpy().astype(numpy.float32).tolist()[0][0] == batch[0, 0].item()


def import_modules(number: int) -> None:
    name = MODULES[number % len(MODULES)]
    sys.modules.pop(name, None)
    try:
        importlib.import_module(name)
    except ImportError:
        pass


def compute(number: int) -> None:
    # Not with PyTorch: workers seed its global generator and set its number of threads, and its locks stay locked.
    assert numpy.isfinite(numpy.random.rand(300, 300) @ numpy.random.rand(300, 300)).all()


BUSY = (load, convert, import_modules, compute, use_everything, use_everything)


def fork_beside_threads(forks: int, seed: int) -> None:
    choice, stop, problems, rounds = random.Random(seed), threading.Event(), [], collections.Counter()

    def repeat(work):
        try:
            for number in itertools.count():
                work(number)
                rounds[work.__name__] += 1
                # Other threads must get the GIL.
                if stop.wait(0.002):
                    break
        except BaseException as error:
            problems.append(error)
            raise

    threads = [threading.Thread(target=repeat, args=(work,)) for work in BUSY]
    started, longest, slow = time.monotonic(), 0.0, 0
    for thread in threads:
        thread.start()
    try:
        for number in range(forks):
            faulthandler.dump_traceback_later(FORK_LIMIT, exit=True, file=sys.__stderr__)
            began = time.monotonic()
            workers = choice.randrange(1, 4)
            loader = DataLoader(
                Everything(24), batch_size=2, num_workers=workers, multiprocessing_context="fork", timeout=FORK_LIMIT
            )
            check(loader, list(range(24)))
            took = time.monotonic() - began
            longest, slow = max(longest, took), slow + (took > 4)
            assert not problems, problems
            if number % 100 == 99:
                print(f"{number + 1} forks, {time.monotonic() - started:.0f} s", file=sys.__stdout__, flush=True)
    finally:
        stop.set()
        faulthandler.dump_traceback_later(FORK_LIMIT, exit=True, file=sys.__stderr__)
        for thread in threads:
            thread.join()
        faulthandler.cancel_dump_traceback_later()
    print(
        f"soak: {forks} forks in {time.monotonic() - started:.0f} s, {slow} of them took more than 4 s, the longest"
        f" {longest:.1f} s; beside {', '.join(f'{count} x {name}' for name, count in rounds.items())}",
        file=sys.__stdout__,
        flush=True,
    )


class Killer(soak.Killer):
    """Kills any process that main has forked. Main is a subreaper, so those of a dead template are its children."""

    interval, stops = INTERVAL, 0.0

    def __init__(self, seed):
        self.is_active, self.kinds = False, collections.Counter()
        super().__init__(seed)

    @property
    def targets(self):
        running = [pid for pid, command in processes.children().items() if not command.startswith("Z")]
        return running if self.is_active else []

    @targets.setter
    def targets(self, _):
        pass

    def _send(self, worker, pid):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        super()._send(worker, pid)
        kind = "worker" if name.startswith("loader-wkr") else "template" if parent == os.getpid() else "spare or start"
        self.kinds[kind] += 1


def make(kind: str, workers: int, seed: int, persistent: bool) -> DataLoader:
    arguments = {"num_workers": workers, "batch_size": 4, "max_worker_deaths": 20, "timeout": EPOCH_LIMIT}
    arguments |= {"multiprocessing_context": "fork", "persistent_workers": persistent}
    if kind == "stream":
        return DataLoader(Stream(SHARDS), **arguments)
    return DataLoader(Rows(SAMPLES), shuffle=True, generator=torch.Generator().manual_seed(seed), **arguments)


def numbers_of(kind, batch):
    return batch.tolist() if kind == "stream" else batch[:, 0].tolist()


def load_one_epoch(options, killer) -> collections.Counter:
    """Loads an epoch, and resumes it as often as template and spare are dead. Returns what has happened."""
    loader, found, seen = make(*options), [], collections.Counter()
    wanted = [numbers_of(options[0], batch) for batch in make(*options)]
    killer.is_active = True
    try:
        while True:
            try:
                for batch in loader:
                    found.append(numbers_of(options[0], batch))
                break
            except RuntimeError as error:
                problem = "the process that forks the workers failed"
                if problem not in str(error):
                    raise
            seen["resumed"] += 1
            state, loader = loader.state_dict(), make(*options)
            loader.load_state_dict(state)
    finally:
        killer.is_active = False
    assert found == wanted, f"{options}: {len(found)} batches instead of {len(wanted)}, or others"
    return seen + collections.Counter(batches=len(found), epochs=1)


def kill_everything(batches: int, seed: int) -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    choice, killer, seen, started = random.Random(seed), Killer(seed), collections.Counter(), time.monotonic()
    before = len(processes.descriptors())
    try:
        while seen["batches"] < batches:
            faulthandler.dump_traceback_later(EPOCH_LIMIT, exit=True, file=sys.__stderr__)
            options = choice.choice(("rows", "stream")), choice.randrange(1, 4), choice.randrange(100), choice.random() < 0.5
            seen += load_one_epoch(options, killer)
            gc.collect()
            print(f"{dict(seen)}, {dict(killer.kinds)}, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        killer.stop()
        faulthandler.cancel_dump_traceback_later()
    print(
        f"soak: {seen['batches']} batches in {time.monotonic() - started:.0f} s, none wrong; killed:"
        f" {', '.join(f'{count} x {kind}' for kind, count in killer.kinds.items())}; {seen['resumed']} times resumed"
    )
    assert {"worker", "template"} <= killer.kinds.keys(), "too few batches to disturb anything"
    soak.check_nothing_left(before)


def main():
    forks, batches = int(sys.argv[1]), int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    warnings.filterwarnings("ignore", category=RuntimeWarning, message=".*worker")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    # A pipe that is often full, so that threads hold the locks of the streams for long.
    reader, writer = os.pipe()
    threading.Thread(target=lambda: collections.deque(iter(lambda: os.read(reader, 4096), b""), maxlen=0)).start()
    with open(writer, "w") as sys.stdout:
        log.addHandler(logging.StreamHandler(sys.stdout))
        log.propagate = False
        fork_beside_threads(forks, seed)
        log.handlers.clear()
    sys.stdout = sys.__stdout__
    kill_everything(batches, seed)


if __name__ == "__main__":
    main()
