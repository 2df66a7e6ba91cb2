"""Random loaders, compared with PyTorch's: batches, order, random numbers in samples, and the generators afterwards.

The environment variable ANY_LOADER sets the number of loaders.
"""

import os
import random

import numpy
import pytest
import torch
from torch.utils import data

from loader import DataLoader

COUNT = int(os.environ.get("ANY_LOADER", "40"))

SAMPLES = {
    "integers": lambda i: int(i),
    "tensors": lambda i: torch.full((3, 2), float(i)),
    "random numbers": lambda _: (torch.rand(2), random.random(), numpy.random.rand()),
    "mappings": lambda i: {"array": numpy.arange(3) + i, "text": str(i), "list": [i, float(i)]},
    "small types": lambda i: (
        torch.full((2,), float(i), dtype=torch.bfloat16),
        torch.tensor(i % 2 == 0),
        numpy.float32(i),
    ),
    "workers": lambda _: worker(),
}


def worker():
    info = data.get_worker_info()
    return (-1, 0, 0) if info is None else (info.id, info.num_workers, info.seed)


class Map(data.Dataset):
    def __init__(self, length, samples):
        self.length, self.samples = length, samples

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return SAMPLES[self.samples](index)


class Many(Map):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(data.IterableDataset):
    def __init__(self, length, samples):
        self.length, self.samples = length, samples

    def __iter__(self):
        first, _, _ = worker()
        step = max(worker()[1], 1)
        return (SAMPLES[self.samples](i) for i in range(max(first, 0), self.length, step))


def same_list(samples):
    return samples


def seed_numpy(number):
    numpy.random.seed(number)


def a_sampler(choose, length):
    own = torch.Generator().manual_seed(choose.randrange(1000))
    several = range(max(length, 1))
    return choose.choice(
        [
            data.RandomSampler(several),
            data.RandomSampler(several, replacement=True, num_samples=length + 3, generator=own),
            data.WeightedRandomSampler([1.0 + i for i in several], len(several), generator=own),
            data.SubsetRandomSampler(several[::2], generator=own),
            list(several)[::-1],
            list(numpy.random.RandomState(length).permutation(len(several))),
        ]
    )


def arguments_of(choose):
    """Returns random arguments of a loader. Equal generators of random numbers return equal arguments."""
    length, samples = choose.choice([1, 2, 5, 7, 16, 33]), choose.choice(list(SAMPLES))
    dataset = choose.choice([Map, Many, Stream])(length, samples)
    given = {"num_workers": choose.choice([0, 1, 2, 3])}
    is_map, form = (
        dataset.__class__ is not Stream,
        choose.choice(["batches", "batches", "samples", "sampler", "batch_sampler"]),
    )
    if form == "batch_sampler" and is_map:
        batches = data.BatchSampler(a_sampler(choose, length), choose.choice([1, 3, 4]), choose.random() < 0.5)
        given["batch_sampler"] = list(batches) if choose.random() < 0.3 else batches
    else:
        batched = {"batch_size": choose.choice([1, 2, 3, 8, 64]), "drop_last": choose.random() < 0.4}
        given |= {"batch_size": None} if form == "samples" else batched
        if is_map and form == "sampler":
            given["sampler"] = a_sampler(choose, length)
        elif is_map:
            given["shuffle"] = choose.random() < 0.5
    if given["num_workers"]:
        given["persistent_workers"] = choose.random() < 0.4
        given["prefetch_factor"] = choose.choice([None, 1, 2, 5])
    given["worker_init_fn"] = choose.choice([None, None, seed_numpy])
    if choose.random() < 0.2:
        given["collate_fn"] = same_list
    if choose.random() < 0.4:
        given["generator"] = torch.Generator().manual_seed(7)
    return dataset, given


def plain(value):
    """Returns numbers, texts, lists and dicts that can be compared."""
    match value:
        case torch.Tensor():
            return str(value.dtype), tuple(value.shape), value.double().tolist()
        case numpy.ndarray():
            return str(value.dtype), value.tolist()
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return type(value).__name__, [plain(item) for item in value]
    return type(value).__name__, value


def epochs_of(kind, seed):
    """Returns the batches of some epochs, which end early at random, and the next number of each generator."""
    for seed_one in (torch.manual_seed, random.seed, numpy.random.seed):
        seed_one(seed)
    choose = random.Random(seed)
    dataset, given = arguments_of(choose)
    loader, found = kind(dataset, **given), []
    for _ in range(choose.choice([1, 2, 3])):
        stop, batches = choose.choice([None, None, None, 0, 1, 3]), []
        for number, batch in enumerate(loader):
            batches.append(plain(batch))
            if number == stop:
                break
        found.append(batches)
    drawn = [torch.rand(1).item(), random.random(), numpy.random.rand()]
    drawn += [torch.rand(1, generator=given["generator"]).item()] if "generator" in given else []
    return type(dataset).__name__, dataset.length, dataset.samples, given, found, drawn


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(COUNT))
def test_any_loader_gives_what_pytorch_s_gives(seed):
    *described, given, expected, drawn = epochs_of(data.DataLoader, seed)
    *_, found, found_drawn = epochs_of(DataLoader, seed)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours == theirs, f"epoch {number} of {described}, {given}"
    assert found_drawn == drawn, f"{described}, {given}"
