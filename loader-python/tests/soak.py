"""Loads epochs with random options, one after another, and kills and stops workers at random moments.

    python loader-python/tests/soak.py SECONDS [SEED]

Each epoch must have the batches of PyTorch's loader; with `seed_samples` and with `RustLoader`, those of this loader
without workers. The program leaves some epochs, and another loader resumes them
from the state. At the end no process, descriptor or shared memory may be left, and memory, descriptors and threads may
not have grown. Lines that begin with `soak:` have the figures.
"""

import faulthandler
import functools
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import processes
import torch
import torch.utils.data
from torch_datasets import Rows, Stream

import loader

SAMPLES, SHARDS = 300, (80, 60, 100, 60)
INTERVAL = 0.15  # seconds between signals, on average
MAX_STOP = 0.3  # seconds for which a worker is stopped
EPISODE_LIMIT = 120  # seconds until the program prints where each thread is, and ends
FOREVER = 1_000_000
#: What must not grow, with the maximum growth: the slope of a line through the second half of the run, times the run's
#: length.
BOUNDS = {"bytes of memory": 16 << 20, "descriptors": 32, "threads": 4, "mappings": 32}


class Keyed(Rows):
    """Rows whose keys are texts."""

    def __getitem__(self, key):
        return super().__getitem__(int(key))


class Keys(torch.utils.data.RandomSampler):
    """Texts in the order of PyTorch's sampler."""

    def __iter__(self):
        return map(str, super().__iter__())


class Draws(Rows):
    """Row `i` has `i` and a random number."""

    def __getitem__(self, index):
        return torch.tensor([index, torch.randint(1 << 40, ()).item()])


class Options(NamedTuple):
    kind: str
    num_workers: int
    batch_size: int
    persistent: bool
    seed: int


#: The kinds whose order or samples PyTorch's loader does not give. This loader without workers gives them.
OWN_KINDS = ("draws", "rust loader")


class Killer:
    """Sends signals to random workers from a thread."""

    interval, stops = INTERVAL, 0.2

    def __init__(self, seed):
        self.targets, self.killed, self.stopped = [], 0, 0
        self._random, self._end = random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._end.wait(self._random.uniform(0, 2 * self.interval)):
            if not (targets := self.targets):
                continue
            try:
                pid = self._random.choice(targets)
                worker = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                # The number may be that of a later process, which is none of this program's.
                if pid in processes.children():
                    self._send(worker, pid)
            except ProcessLookupError:
                pass
            finally:
                os.close(worker)

    def _send(self, worker, pid):
        if self._random.random() < self.stops:
            signal.pidfd_send_signal(worker, signal.SIGSTOP)
            self.stopped += 1
            time.sleep(self._random.uniform(0, MAX_STOP))
            signal.pidfd_send_signal(worker, signal.SIGCONT)
        else:
            signal.pidfd_send_signal(worker, signal.SIGKILL)
            self.killed += 1

    def stop(self):
        self._end.set()
        self._thread.join()


def make(options, csv, loader_class=loader.DataLoader):
    """Makes the loader, or PyTorch's with the same order."""
    is_ours = loader_class is loader.DataLoader
    if options.kind == "rust loader":
        return make_rust_loader(options, csv)
    arguments = {"batch_size": options.batch_size, "num_workers": options.num_workers}
    if options.num_workers > 0:
        arguments["persistent_workers"] = options.persistent
    if is_ours:
        arguments["max_worker_deaths"] = FOREVER
    if options.kind == "stream":
        return loader_class(Stream(SHARDS), **arguments)
    # A loader with `shuffle` draws the seed of its workers from the same generator, once or in each epoch, so that the
    # order of later epochs depends on `persistent_workers`.
    sampler_class = Keys if options.kind == "texts" else torch.utils.data.RandomSampler
    sampler = sampler_class(range(SAMPLES), generator=torch.Generator().manual_seed(options.seed))
    match options.kind:
        case "texts":
            return loader_class(Keyed(SAMPLES), sampler=sampler, **arguments)
        case "draws":
            # Persistent workers keep the seed of the first epoch, and each epoch without workers has a seed of its own.
            arguments.pop("persistent_workers", None)
            generator = torch.Generator().manual_seed(options.seed)
            return loader_class(Draws(SAMPLES), sampler=sampler, generator=generator, seed_samples=True, **arguments)
        case "rust" if is_ours:
            return loader_class(loader.Csv(csv), sampler=sampler, **arguments)
        case _:
            return loader_class(Rows(SAMPLES), sampler=sampler, **arguments)


def make_rust_loader(options, csv):
    dataset, arguments = loader.Csv(csv), {}
    if options.num_workers > 0:
        arguments = {"persistent_workers": options.persistent, "max_worker_deaths": FOREVER}
    return loader.RustLoader(
        dataset, options.batch_size, shuffle=True, seed=options.seed, num_workers=options.num_workers, **arguments
    )


def numbers_of(batch, kind):
    """Returns the numbers of a batch. Fails if the rest of the batch does not belong to them."""
    if kind in ("stream", "draws"):
        return batch.tolist()
    numbers, squares = (batch["number"], batch["square"]) if isinstance(batch, dict) else batch.unbind(1)
    assert torch.equal(squares, numbers * numbers), f"a batch has other values: {batch}"
    return numbers.tolist()


def workers_of(iterator):
    """Returns the process ids of the workers of an iterator of either loader."""
    if isinstance(iterator, loader._native.BatchIterator):
        return iterator.worker_pids()
    return [worker.pid for worker in iterator._workers]


@functools.cache
def expected(options, csv, epochs):
    """Returns the epochs that PyTorch's loader gives, or this loader without workers. The number of workers only changes
    those of a stream."""
    workers = options.num_workers if options.kind == "stream" else 0
    loader_class = loader.DataLoader if options.kind in OWN_KINDS else torch.utils.data.DataLoader
    theirs = make(options._replace(num_workers=workers), csv, loader_class)
    return [[numbers_of(batch, options.kind) for batch in theirs] for _ in range(epochs)]


def episode(options, csv, killer, choice, epochs):
    """Loads and checks epochs of one loader. Returns how many of them were left and continued."""
    resumed, ours, wanted = 0, make(options, csv), expected(options, csv, epochs)
    for epoch in range(epochs):
        found = []
        leave_after = choice.randrange(len(wanted[epoch])) if choice.random() < 0.3 else None
        while True:
            iterator = iter(ours)
            for batch in iterator:
                killer.targets = workers_of(iterator) if options.num_workers else []
                found.append(numbers_of(batch, options.kind))
                if len(found) - 1 == leave_after:
                    break
            killer.targets = []
            if leave_after is None or len(found) == len(wanted[epoch]):
                break
            resumed, leave_after = resumed + 1, None
            state = ours.state_dict()
            if options.kind != "stream":
                options = options._replace(num_workers=choice.randrange(4))
            ours = make(options, csv)
            ours.load_state_dict(state)
        assert found == wanted[epoch], f"epoch {epoch} with {options}:\n{found}\ninstead of\n{wanted[epoch]}"
    return resumed


def footprint():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tasks, maps = os.listdir("/proc/self/task"), Path("/proc/self/maps").read_text().splitlines()
    of_memory = sum("memfd:" in line for line in maps)
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), len(tasks), of_memory


def check_growth(seconds, series):
    """Fits a line through the second half of each figure: in the first, caches fill."""
    seconds, grown = np.array(seconds), []
    half = seconds >= seconds[-1] / 2
    assert half.sum() >= 3, "too few episodes: give the soak more seconds"
    for (name, bound), values in zip(BOUNDS.items(), np.array(series, dtype=float).T):
        growth = np.polyfit(seconds[half], values[half], 1)[0] * seconds[-1]
        print(f"soak: {name}: at most {values.max():.0f}, {growth:.1f} over the run (allowed: {bound})")
        grown += [name] if growth > bound else []
    assert not grown, f"{grown} grow"


def check_nothing_left(before):
    gc.collect()

    def left():
        return processes.children(), processes.shared_memory(), len(processes.descriptors()) - before

    # The template stays, with its connection.
    processes.wait_until(lambda: left()[:2] == ({}, set()), 10)
    children, memory, descriptors = left()
    print(f"soak: left: {len(children)} processes, {len(memory)} shared memories, {descriptors} descriptors")
    assert not children and not memory and descriptors <= 0, (children, memory, processes.descriptors())


def soak(length, seed, csv):
    choice, killer = random.Random(seed), Killer(seed)
    started, seconds, series, epochs, resumed, before = time.monotonic(), [], [], 0, 0, None
    try:
        while time.monotonic() < started + length:
            faulthandler.dump_traceback_later(EPISODE_LIMIT, exit=True)
            kind, workers = choice.choice(["rows", "texts", "stream", "rust", *OWN_KINDS]), choice.randrange(4)
            options = Options(kind, workers, choice.choice([1, 4, 7]), choice.random() < 0.5, choice.randrange(3))
            count = choice.randrange(1, 4)
            resumed += episode(options, csv, killer, choice, count)
            epochs += count
            gc.collect()
            if before is None and workers > 0 and not kind.startswith("rust"):
                # The template runs.
                processes.wait_until(lambda: not processes.children(), 10)
                before = len(processes.descriptors())
            seconds.append(time.monotonic() - started)
            series.append(footprint())
    finally:
        killer.stop()
        faulthandler.cancel_dump_traceback_later()
    print(
        f"soak: {seconds[-1]:.0f} s, {len(seconds)} loaders, {epochs} epochs, {killer.killed} workers killed, "
        f"{killer.stopped} stopped, {resumed} epochs left and continued"
    )
    assert killer.killed > 0 and resumed > 0, "the soak was too short to disturb anything"
    check_nothing_left(before)
    check_growth(seconds, series)


def main():
    length, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 7
    warnings.filterwarnings("ignore", category=RuntimeWarning, message=".*worker")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder, "rows.csv")
        csv.write_text("number,square\n" + "".join(f"{number},{number * number}\n" for number in range(SAMPLES)))
        soak(length, seed, csv)


if __name__ == "__main__":
    main()
