"""Keys that are not plain integers: how long main keeps them, and states."""

import itertools
import os
import time
import weakref

import numpy as np
import pytest
import torch
import torch.utils.data
from torch_datasets import Items, same
from processes import descriptors, workers

from loader import DataLoader


class Key(str):
    """A text that a weak reference can refer to."""


class Named(Items):
    """The sample of a key is the key, as a plain text."""

    def __init__(self):
        super().__init__([])

    def __len__(self):
        return 100

    def __getitem__(self, key):
        return str(key)


class Endless:
    """A sampler without an end, which notes which of its keys live."""

    def __init__(self, size=1):
        self.alive, self.size = weakref.WeakSet(), size

    def __iter__(self):
        for number in itertools.count():
            key = Key(f"{number} ".ljust(self.size, "x"))
            self.alive.add(key)
            yield key


def key_file():
    """Returns the bytes of memory that files of keys take in this process."""
    files = [os.fstat(int(number)) for number, target in descriptors().items() if "memfd:loader-keys" in target]
    # Main has several descriptors of a file.
    return sum({file.st_ino: file.st_blocks * 512 for file in files}.values())


def test_keys_of_returned_batches_are_freed_without_workers():
    sampler = Endless()
    for number, batch in zip(range(1000), DataLoader(Named(), batch_size=4, sampler=sampler), strict=False):
        assert batch == [f"{4 * number + i} " for i in range(4)]
        assert len(sampler.alive) <= 4 * 4


@pytest.mark.filterwarnings("ignore:.*worker:RuntimeWarning")
@pytest.mark.parametrize("in_order", [True, False])
def test_keys_of_returned_batches_are_freed_with_workers(in_order):
    """A batch has 40 KB of keys, and all batches have 20 MB."""
    loader = DataLoader(Named(), batch_size=4, sampler=Endless(10_000), num_workers=2, in_order=in_order)
    found, most = [], 0
    for number, batch in zip(range(500), loader, strict=False):
        assert len(batch[0]) == 10_000
        found.append(batch[0].split()[0])
        most = max(most, key_file())
        if number == 200 and in_order:
            # A new worker reads the keys of its batches again. Out of order, the others would go on meanwhile.
            os.kill(workers()[0], 9)
    # Out of order, a slow worker keeps its keys while the other one goes on.
    assert 0 < most and (most <= 2 << 20 or not in_order)
    if in_order:
        assert found == [str(4 * number) for number in range(500)]
    assert len(set(found)) == 500


KEYS = [f"key {number}" for number in range(40)]


@pytest.mark.parametrize("before, after", [(0, 0), (0, 2), (2, 0), (2, 2)])
def test_a_state_counts_batches_whatever_the_keys_are(before, after):
    loader = DataLoader(Named(), batch_size=4, sampler=KEYS, num_workers=before)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(4)]
    state = loader.state_dict()
    del iterator
    loader = DataLoader(Named(), batch_size=4, sampler=KEYS, num_workers=after)
    loader.load_state_dict(state)
    same(first + list(loader), list(DataLoader(Named(), batch_size=4, sampler=KEYS)))


def test_a_state_of_a_later_epoch_of_persistent_workers():
    loader = DataLoader(Named(), batch_size=4, sampler=KEYS, num_workers=2, persistent_workers=True)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    del iterator, loader
    loader = DataLoader(Named(), batch_size=4, sampler=KEYS, num_workers=2)
    loader.load_state_dict(state)
    assert len(list(loader)) == 9


def test_a_resumed_loader_keeps_no_keys_of_batches_that_it_leaves_out():
    sampler = Endless()
    loader = DataLoader(Named(), batch_size=4, sampler=sampler)
    iterator = iter(loader)
    for _ in range(500):
        next(iterator)
    state = loader.state_dict()
    del iterator
    loader = DataLoader(Named(), batch_size=4, sampler=sampler)
    loader.load_state_dict(state)
    iterator = iter(loader)
    assert len(sampler.alive) <= 4 * 4
    assert next(iterator) == [f"{2000 + i} " for i in range(4)]


class Renamed:
    """Gives other keys in each epoch, of other lengths."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([f"{'x' * (number * self.epoch % 7)} {number}" for number in range(12)])

    def __len__(self):
        return 12


class NamedDraws(Named):
    def __getitem__(self, key):
        return key, torch.rand(()).item()


def begin_late(worker):
    time.sleep(worker)


def epochs_that_end_early(kind):
    torch.manual_seed(2)
    loader = kind(
        NamedDraws(),
        3,
        sampler=Renamed(),
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=begin_late,
        collate_fn=list,
    )
    first = [next(iter(loader)) for _ in range(3)]
    return first, list(loader)


def test_a_worker_loads_the_batches_of_an_epoch_that_was_left_before_it_has_begun():
    """Worker 1 finds their keys, so its random numbers are PyTorch's."""
    assert epochs_that_end_early(DataLoader) == epochs_that_end_early(torch.utils.data.DataLoader)


class Types(Items):
    def __getitem__(self, key):
        return f"{type(key).__name__} {key}"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_dataset_gets_the_sampler_s_own_types(num_workers):
    keys = [np.int64(2), 1, True, -1, np.uint8(7)]
    loader = DataLoader(Types([0]), batch_size=None, sampler=keys, num_workers=num_workers)
    assert list(loader) == [f"{type(key).__name__} {key}" for key in keys]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_keys_that_are_views_of_a_tensor_are_sent_without_the_rest(num_workers):
    """Each key is a view of the whole tensor, of 8 MB, and is sent without the rest of it."""
    order, most = torch.arange(1_000_000).flip(0), 0
    for number, batch in zip(
        range(20), DataLoader(Types([0]), batch_size=10, sampler=order, num_workers=num_workers), strict=False
    ):
        assert batch == [f"Tensor {999_999 - 10 * number - i}" for i in range(10)]
        most = max(most, key_file())
    assert most < 1 << 20


class Drawing(Items):
    def __getitem__(self, key):
        return torch.rand(()).item()


def test_seeds_depend_on_the_content_of_a_key():
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")

    class Local(tuple):
        pass

    def drawn(keys, num_workers):
        torch.manual_seed(1)
        return list(DataLoader(Drawing([]), batch_size=None, sampler=keys, num_workers=num_workers, seed_samples=True))

    order = torch.arange(4)
    keys = [*order, order[1:3], order[2:4], np.int64(1), "1", Local([1]), Local([2])]
    expected = drawn(keys, 0)
    assert len(set(expected)) == len(keys)
    assert drawn(keys, 2) == expected
    assert drawn(keys[::-1], 1) == expected[::-1]
    assert drawn([torch.tensor(3)], 0) == expected[3:4]


def test_a_state_does_not_fit_a_sampler_with_other_keys_of_the_same_length():
    loader = DataLoader(Named(), batch_size=4, sampler=KEYS[10:])
    next(iter(loader))
    state = loader.state_dict()
    other = DataLoader(Named(), batch_size=4, sampler=KEYS[:9:-1])
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="the sampler gives another first batch"):
        iter(other)
    loader.load_state_dict(state)
    assert len(list(loader)) == 7
