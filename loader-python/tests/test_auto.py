"""The argument `num_workers="auto"`: the loader chooses the number of workers, and the batches do not depend on it."""

import os

import pytest
import torch
from torch_datasets import Rows, Slow, Stream

from loader import DataLoader


@pytest.fixture(autouse=True)
def two_cpus():
    """Lets main use two CPUs, so that the loader begins with one worker."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("SKIPPED: this machine has one CPU")
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


def epochs_of(dataset, **arguments):
    arguments["generator"] = torch.Generator().manual_seed(7)
    loader = DataLoader(dataset, batch_size=4, **arguments)
    return [[batch.tolist() for batch in loader] for _ in range(2)]


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_the_batches_are_those_of_two_workers(persistent_workers):
    arguments = {"shuffle": True, "persistent_workers": persistent_workers}
    assert epochs_of(Rows(50), num_workers="auto", **arguments) == epochs_of(Rows(50), num_workers=2, **arguments)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_the_batches_of_an_iterable_dataset_are_those_of_two_workers(persistent_workers):
    stream, arguments = Stream((20, 15)), {"persistent_workers": persistent_workers}
    assert epochs_of(stream, num_workers="auto", **arguments) == epochs_of(stream, num_workers=2, **arguments)


def test_batches_and_order_stay_while_the_loader_adds_workers():
    length = 600
    iterator = iter(DataLoader(Slow(length, 0.02, range(length)), num_workers="auto"))
    numbers, workers = [], []
    for batch in iterator:
        numbers.append(batch[0, 0].item())
        workers.append(len(iterator._workers))
    assert numbers == list(range(length))
    assert workers[0] == 1
    assert max(workers) > 1
