#!/usr/bin/env python3
"""The workloads on PyTorch's DataLoader: the same command line, values and JSON lines as `loader-bench`.

Start method, thread counts and sharing strategy are PyTorch's own defaults on Linux (fork, one thread a worker, file descriptors),
which are its fast ones.
"""

import argparse
import gc
import json
import math
import os
import resource
import statistics
import time

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 64
IMAGE = (3, 224, 224)
PAGE = 1024  # elements in a page of memory
WARM_UP_DIVISOR = 5
DEFAULT_BATCHES = {"overhead": 2000, "bandwidth": 60, "memory": 400, "steady": 80}


class Integers(Dataset):
    """Each sample is its index."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class Images(Dataset):
    """One image, given out again and again."""

    def __init__(self, count):
        self.count = count
        self.image = torch.arange(math.prod(IMAGE), dtype=torch.float32).reshape(IMAGE) / 4

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.image


class Names(Dataset):
    """File names in a list, as most programs keep them."""

    def __init__(self, count):
        self.names = [f"train/class-{number % 1000:04}/image-{number:08}.jpeg" for number in range(count)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return len(self.names[index])


def build(options, dataset, shuffle):
    return DataLoader(dataset, batch_size=BATCH, shuffle=shuffle, num_workers=options.workers)


def spread(figures):
    return {"median": statistics.median(figures), "min": min(figures), "max": max(figures)}


def line(options, **figures):
    print(json.dumps({"loader": "pytorch", "options": vars(options), **figures}), flush=True)


def cpu_microseconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) * 1e6


def throughput(options, batches, checked, open_dataset, look, bits):
    check = verify(options, open_dataset(checked * BATCH), bits)
    loader = build(options, open_dataset(batches * BATCH), options.shuffle)
    warm_up = batches // WARM_UP_DIVISOR
    per_batch, gaps, seen = [], [], 0.0
    cpu = cpu_microseconds()
    for _ in range(options.epochs):
        arrivals = []
        for batch in loader:
            seen += look(batch)
            arrivals.append(time.perf_counter_ns())
        assert len(arrivals) == batches
        steady = arrivals[warm_up:]
        per_batch.append((steady[-1] - steady[0]) / (len(steady) - 1) / 1e3)
        gaps += [(late - early) / 1e3 for early, late in zip(steady, steady[1:])]
    cpu = cpu_microseconds() - cpu
    line(
        options,
        batches=batches,
        us_per_batch=spread(per_batch),
        p99_us=sorted(gaps)[(len(gaps) - 1) * 99 // 100],
        cpu_us_per_batch=cpu / (batches * options.epochs),
        check=check,
    )


def verify(options, dataset, bits):
    """The same sum as `Checksum` on the other side."""
    checksum, shape, dtype, batches = 0, (), None, 0
    for batch in build(options, dataset, False):
        values = bits(batch.numpy().reshape(-1))
        places = numpy.arange(1, len(values) + 1, dtype=numpy.uint64)
        total = int((values * places).sum(dtype=numpy.uint64))
        checksum = (checksum * 1_000_003 + total) % 2**64
        shape, dtype, batches = list(batch.shape), str(batch.dtype).removeprefix("torch."), batches + 1
    return {"batches": batches, "shape": shape, "dtype": dtype, "checksum": f"{checksum:016x}"}


def overhead(options):
    throughput(
        options,
        options.batches,
        64,
        Integers,
        lambda batch: batch[0].item() + batch[-1].item(),
        lambda values: values.view(numpy.uint64),
    )


def bandwidth(options):
    ends = lambda batch: batch[0, 0, 0, 0].item() + batch[-1, -1, -1, -1].item()
    pages = lambda batch: batch.view(-1)[::PAGE].sum().item()
    throughput(
        options,
        options.batches,
        3,
        Images,
        ends if options.read == "ends" else pages,
        lambda values: values.view(numpy.uint32).astype(numpy.uint64),
    )


def start_loader(options):
    samples = 1_000_000
    dataset = Integers(samples) if options.dataset == "trivial" else Names(samples)
    return build(options, dataset, options.shuffle)


def start(options):
    loader = start_loader(options)
    starts, ends = [], []
    for _ in range(options.epochs + 1):
        called = time.perf_counter()
        iterator = iter(loader)
        batch = next(iterator)
        starts.append((time.perf_counter() - called) * 1e3)
        batch[0].item()
        called = time.perf_counter()
        del iterator
        gc.collect()
        ends.append((time.perf_counter() - called) * 1e3)
    line(options, cold_ms=starts[0], first_batch_ms=spread(starts[1:]), drop_ms=spread(ends))


def memory_of(pid):
    figures = {"private": 0, "shared_map_private": 0, "pss": 0}
    shared = False
    with open(f"/proc/{pid}/smaps") as smaps:
        for text in smaps:
            name, value, *_ = text.split()
            if not name.endswith(":"):
                shared = value.endswith("s")  # a map's first line: addresses, permissions...
            elif name in ("Private_Clean:", "Private_Dirty:"):
                figures["shared_map_private" if shared else "private"] += int(value) * 1024
            elif name == "Pss:":
                figures["pss"] += int(value) * 1024
    return figures


def memory(options):
    iterator = iter(start_loader(options))
    for _ in range(options.batches):
        next(iterator)[0].item()
    main = memory_of(os.getpid())
    workers = [memory_of(worker.pid) for worker in iterator._workers]
    pss = main["pss"] + sum(worker["pss"] for worker in workers)
    line(options, batches=options.batches, main=main, workers=workers, pss=pss)


def minor_faults(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[7])


def steady(options):
    total = options.batches
    first, last = total // 4, total * 3 // 4
    iterator = iter(build(options, Images(total * BATCH), False))
    moments = {}
    for number in range(last + 1):
        batch = next(iterator)
        batch.view(-1)[::PAGE].sum().item()
        batch_bytes = batch.numel() * batch.element_size()
        del batch
        if number in (first, last):
            pids = [os.getpid()] + [worker.pid for worker in iterator._workers]
            moments[number] = [minor_faults(pid) for pid in pids]
    main, *workers = (after - before for before, after in zip(moments[first], moments[last]))
    line(options, batches=last - first, batch_bytes=batch_bytes, main_faults=main, worker_faults=workers)


WORKLOADS = {
    "overhead": overhead,
    "bandwidth": bandwidth,
    "start": start,
    "memory": memory,
    "steady": steady,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--read", choices=["ends", "pages"], default="ends")
    parser.add_argument("--dataset", choices=["trivial", "names"], default="trivial")
    options = parser.parse_args()
    if options.batches is None:
        options.batches = DEFAULT_BATCHES.get(options.workload)
    WORKLOADS[options.workload](options)


if __name__ == "__main__":
    main()
