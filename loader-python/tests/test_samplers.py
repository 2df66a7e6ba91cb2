"""The order equals that of PyTorch's loader number for number, and so do the random numbers that are left
afterwards."""

import itertools

import pytest
import torch
import torch.utils.data
from torch_datasets import Items, Rows, same
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from loader import DataLoader

N = 23
WORKERS = pytest.mark.parametrize("num_workers", [0, 1])
INDICES = Items(list(range(N)))


def orders(kind, epochs, num_workers, arguments):
    """Returns the numbers of each epoch, and the state of the global generator at the end."""
    torch.manual_seed(12)
    loader = kind(INDICES, num_workers=num_workers, **arguments())
    found = [[batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader] for _ in range(epochs)]
    return found, torch.get_rng_state().tolist()


def generator():
    return torch.Generator().manual_seed(42)


class Twice(torch.utils.data.Sampler):
    """A sampler of its own, whose order depends on the epoch."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([self.epoch, self.epoch + 1, 0])

    def __len__(self):
        return 3


CASES = {
    "shuffled by the global generator": lambda: {"shuffle": True},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": generator(), "batch_size": 4},
    "shuffled without batches": lambda: {"shuffle": True, "generator": generator(), "batch_size": None},
    "random with replacement": lambda: {
        "sampler": RandomSampler(INDICES, replacement=True, num_samples=40, generator=generator())
    },
    "random, more than there are": lambda: {"sampler": RandomSampler(INDICES, num_samples=2 * N + 3), "batch_size": 5},
    "a random subset": lambda: {"sampler": SubsetRandomSampler([2, 3, 5, 7, 11], generator=generator())},
    "weighted": lambda: {"sampler": WeightedRandomSampler(list(range(N)), 30, generator=generator()), "batch_size": 4},
    "a batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(INDICES), 4, drop_last=True)},
    "sequential": lambda: {"sampler": SequentialSampler(INDICES), "batch_size": 4, "drop_last": True},
    "distributed": lambda: {"sampler": DistributedSampler(INDICES, num_replicas=3, rank=1, seed=5), "batch_size": 2},
    "a sampler of one's own": lambda: {"sampler": Twice(), "batch_size": 2},
    "a range": lambda: {"sampler": range(2, 12), "batch_size": 3},
    "a list of tuples": lambda: {"batch_sampler": [(0, 1), (2, 3, 4), (5,)]},
}


@pytest.mark.parametrize(
    "case, num_workers",
    [
        *((case, 0) for case in CASES),
        ("shuffled by the global generator", 2),
        ("shuffled by a generator", 2),
        ("a batch sampler", 1),
    ],
)
def test_three_epochs_are_pytorch_s_three_epochs(case, num_workers):
    theirs = orders(torch.utils.data.DataLoader, 3, num_workers, CASES[case])
    ours = orders(DataLoader, 3, num_workers, CASES[case])
    assert ours[0] == theirs[0]
    assert ours[1] == theirs[1], "the global generator was used otherwise than by PyTorch"


@pytest.mark.parametrize("case", CASES)
def test_three_epochs_of_persistent_workers_are_pytorch_s_too(case):
    def arguments():
        return CASES[case]() | {"persistent_workers": True}

    assert orders(DataLoader, 3, 2, arguments) == orders(torch.utils.data.DataLoader, 3, 2, arguments)


@WORKERS
def test_the_order_of_a_distributed_sampler_follows_set_epoch(num_workers):
    sampler = DistributedSampler(INDICES, num_replicas=2, rank=0)
    loader = DataLoader(INDICES, sampler=sampler, num_workers=num_workers, batch_size=4)
    found = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        found.append(torch.cat(list(loader)).tolist())
    assert found[0] == found[2] != found[1]
    assert sorted(found[0] + found[1])


@WORKERS
def test_a_sampler_may_have_no_end(num_workers):
    loader = DataLoader(INDICES, sampler=itertools.cycle(range(N)), num_workers=num_workers, batch_size=10)
    numbers = torch.cat(list(itertools.islice(loader, 9))).tolist()
    assert numbers == [index % N for index in range(90)]


@WORKERS
def test_the_generator_is_drawn_from_while_the_epoch_runs(num_workers):
    """A sampler is asked for a batch only when a worker may get it, so that a lazy sampler can be as long as it
    likes."""
    asked = []

    def lazy():
        for index in range(N):
            asked.append(index)
            yield index

    iterator = iter(DataLoader(INDICES, sampler=lazy(), num_workers=num_workers))
    next(iterator)
    assert len(asked) <= 1 + 2 * num_workers + 1


@WORKERS
@pytest.mark.parametrize("after", [0, 5])
def test_an_exception_of_the_sampler_comes_after_the_batches_before_it(num_workers, after):
    def failing():
        yield from range(after)
        raise LookupError("no more")

    got = []
    with pytest.raises(LookupError, match="^no more$"):
        for batch in DataLoader(INDICES, sampler=failing(), num_workers=num_workers):
            got.append(batch.item())
    assert got == list(range(after))


class WithoutLength:
    def __init__(self, error):
        self.error = error

    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        raise self.error("no length")


@WORKERS
@pytest.mark.parametrize("error", [TypeError, RuntimeError, AttributeError, ValueError, OverflowError])
def test_a_sampler_s_length_may_raise_any_exception(num_workers, error):
    assert [batch.item() for batch in DataLoader(INDICES, sampler=WithoutLength(error), num_workers=num_workers)] == [
        0,
        1,
        2,
    ]


@WORKERS
def test_batches_of_a_subset_in_a_concatenation_equal_pytorchs(num_workers):
    dataset = torch.utils.data.ConcatDataset([Rows(4), torch.utils.data.Subset(Rows(9), [8, 1])])
    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    same(list(DataLoader(dataset, batch_size=4, num_workers=num_workers)), theirs)


def zipped(kind):
    """The orders of two shuffled loaders that a program iterates in step, and what a generator gives after them."""
    torch.manual_seed(4)
    labelled, unlabelled = (kind(range(8), batch_size=2, shuffle=True) for _ in range(2))
    pairs = [(one.tolist(), two.tolist()) for one, two in zip(labelled, unlabelled)]
    return pairs, torch.rand(1).item()


def test_loaders_in_step_draw_in_pytorch_s_order():
    assert zipped(DataLoader) == zipped(torch.utils.data.DataLoader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, DataLoader], ids=["PyTorch", "this"])
def test_a_library_may_advance_the_sampler_in_the_constructor_of_the_iterator(kind, workers, monkeypatch):
    """SpeechBrain does it, to go on in the middle of an epoch."""
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    constructor, left = base.__init__, [2]

    def construct(self, loader):
        constructor(self, loader)
        while left[0]:
            next(self._sampler_iter)
            left[0] -= 1

    def reset(self, loader, first_iter=False):
        if not first_iter:
            self._sampler_iter = iter(self._index_sampler)
            self._num_yielded = 0

    monkeypatch.setattr(base, "__init__", construct)
    monkeypatch.setattr(base, "_reset", reset)
    loader = kind(range(10), 2, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[4, 5], [6, 7], [8, 9]]
    assert len(list(loader)) == 5
