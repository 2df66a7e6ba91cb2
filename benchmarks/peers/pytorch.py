#!/usr/bin/env python3
"""The workloads on PyTorch's DataLoader: the same command line, values and JSON lines as `loader-bench`.

Start method, thread counts and sharing strategy are PyTorch's own defaults on Linux (fork, one thread a worker, file
descriptors), which are its fast ones. Samples are tensors, so that nothing is converted on the way into a batch.
"""

import json
import os
import time

import torch
from torch.utils.data import DataLoader

from workloads import (
    IMAGE,
    MEAN,
    START_SAMPLES,
    STD,
    ImageFiles,
    Integers,
    NotApplicable,
    Peer,
    Repeated,
    pages,
    repeated_sample,
    spread,
)

RESUME_AT = 10_000  # batches


class PyTorch(Peer):
    name = "pytorch"

    def open(self, dataset, options, shuffle):
        prefetch = {"prefetch_factor": options.prefetch_factor} if options.workers > 0 else {}
        return DataLoader(
            dataset,
            batch_size=options.batch_size,
            shuffle=shuffle,
            num_workers=options.workers,
            drop_last=True,
            **prefetch,
        )

    def sample_of(self, array):
        return torch.from_numpy(array)

    def array_of(self, batch):
        return batch.numpy()

    def images(self, options, count):
        return ImageFiles(options.folder, count, PIPELINES[options.pipeline]())


def pillow():
    """As in PyTorch's ImageNet example: Pillow decodes, crops and resizes."""
    from PIL import Image
    from torchvision import transforms

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(IMAGE[1:]),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def load(path):
        with Image.open(path) as image:
            return transform(image.convert("RGB"))

    return load


def torchvision():
    """What torchvision's documentation calls the fast one: v2, on tensors of bytes."""
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(IMAGE[1:], antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    return lambda path: transform(decode_image(path, mode=ImageReadMode.RGB))


PIPELINES = {"pillow": pillow, "torchvision": torchvision}


def minor_faults(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[7])


def steady(peer, options):
    """Page faults of the processes in the middle half of an epoch of 38.5 MB batches."""
    total = options.batches
    first, last = total // 4, total * 3 // 4
    sample = peer.sample_of(repeated_sample(options))
    iterator = iter(peer.open(Repeated(total * options.batch_size, sample), options, False))
    moments = {}
    for number in range(last + 1):
        batch = next(iterator)
        pages(peer.array_of(batch))
        batch_bytes = batch.numel() * batch.element_size()
        del batch
        if number in (first, last):
            pids = [os.getpid()] + [worker.pid for worker in iterator._workers]
            moments[number] = [minor_faults(pid) for pid in pids]
    main, *workers = (after - before for before, after in zip(moments[first], moments[last]))
    peer.line(options, batches=last - first, batch_bytes=batch_bytes, main_faults=main, worker_faults=workers)


def resume(peer, options):
    """PyTorch's own loader has no state: torchdata's StatefulDataLoader is what its users take. It resumes with the same
    number of workers."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        raise NotApplicable("torchdata is not installed") from None
    stop, compared = options.batches or RESUME_AT, 20

    def loader():
        return StatefulDataLoader(
            Integers(START_SAMPLES),
            batch_size=options.batch_size,
            shuffle=options.shuffle,
            num_workers=options.workers,
            generator=torch.Generator().manual_seed(0),
        )

    first = loader()
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    saves, resumes = [], []
    for _ in range(options.epochs):
        called = time.perf_counter()
        state = json.dumps(first.state_dict(), default=as_text)
        saves.append((time.perf_counter() - called) * 1e6)
        state_dict = first.state_dict()
    expected = [next(iterator) for _ in range(compared)]
    del iterator, first
    for _ in range(options.epochs):
        second = loader()
        called = time.perf_counter()
        second.load_state_dict(state_dict)
        rest = iter(second)
        batches = [next(rest)]
        resumes.append((time.perf_counter() - called) * 1e3)
        batches += [next(rest) for _ in range(compared - 1)]
        assert all(map(torch.equal, batches, expected)), "the resumed run is another one"
        del rest, second
    peer.line(
        options,
        state_bytes=len(state),
        save_us=spread(saves),
        resume_ms=spread(resumes),
        check={"batches": compared},
    )


def as_text(value):
    """What JSON does not know: the state of a generator, a tensor of bytes."""
    return bytes(value.tolist()).hex()


PyTorch.further_workloads = {"steady": steady, "resume": resume}


if __name__ == "__main__":
    PyTorch().main()
