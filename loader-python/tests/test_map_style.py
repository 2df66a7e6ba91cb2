"""Map-style datasets: the values and their order equal those of PyTorch's loader, for any number of workers."""

import operator

import numpy as np
import pytest
import torch
import torch.utils.data
from torch_datasets import Items, Rows, same
from torch.utils.data import TensorDataset

from loader import DataLoader

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


class Many(Rows):
    """Answers a whole batch at once."""

    def __getitems__(self, indices):
        return [torch.tensor([index, len(indices)]) for index in indices]


class ManyOff(Rows):
    __getitems__ = None


class Named:
    """Has keys of any kind, and no length."""

    def __getitem__(self, key):
        return f"{type(key).__name__} {key}"


def both(dataset, num_workers, **arguments):
    """Returns the batches of this loader, after a comparison with those of PyTorch's without workers."""
    theirs = list(torch.utils.data.DataLoader(dataset, **arguments))
    ours = list(DataLoader(dataset, num_workers=num_workers, **arguments))
    same(ours, theirs)
    return ours


@WORKERS
@pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}], ids=str
)
def test_batches_without_shuffle_equal_pytorchs(num_workers, arguments):
    assert both(Rows(18), num_workers, **arguments)


@WORKERS
def test_there_may_be_more_workers_than_batches_or_no_batch(num_workers):
    assert len(both(Rows(1), num_workers)) == 1
    assert both(Rows(0), num_workers) == []


@WORKERS
def test_batches_of_a_tensor_dataset_equal_pytorchs(num_workers):
    dataset = TensorDataset(torch.randn(50, 3, 5), torch.arange(50))
    both(dataset, num_workers, batch_size=8)


@WORKERS
def test_getitems_gets_whole_batches_if_it_is_there_and_true(num_workers):
    assert both(Many(7), num_workers, batch_size=4)[0][0].tolist() == [0, 4]
    assert both(ManyOff(7), num_workers, batch_size=4)[0][1].tolist() == [1, 1]
    # Without automatic batching it is not called.
    assert both(Many(7), num_workers, batch_size=None)[2].tolist() == [2, 4]


@WORKERS
def test_keys_can_be_anything(num_workers):
    keys = [
        "a",
        ("b", 2),
        -1,
        0,
        2**62,
        2**63,
        2**100,
        np.int64(3),
        np.str_("c"),
        None,
        1.5,
        True,
        b"x",
        frozenset([1]),
        slice(1, 2),
    ]
    batches = both(Named(), num_workers, sampler=keys, batch_size=4, collate_fn=list)
    assert batches[1][3] == "int64 3"
    both(Named(), num_workers, sampler=keys, batch_size=None)
    both(Named(), num_workers, batch_sampler=[keys[:3], keys[3:], []], collate_fn=list)


@WORKERS
def test_negative_keys_count_from_the_end(num_workers):
    both(Items(list(range(10))), num_workers, sampler=[-1, -2, 3])


@WORKERS
def test_a_sampler_of_lists_loads_in_bulk(num_workers):
    dataset = TensorDataset(torch.arange(20).view(20, 1))
    (first, *_) = both(dataset, num_workers, sampler=[[1, 2], [3], list(range(5))], batch_size=None)
    assert first[0].shape == (2, 1)


@WORKERS
def test_a_batch_sampler_may_give_batches_of_different_sizes(num_workers):
    sizes = [len(batch) for batch in both(Rows(9), num_workers, batch_sampler=[(0, 1), [2], (3, 4, 5, 6), [8]])]
    assert sizes == [2, 1, 4, 1]


@WORKERS
def test_a_dataset_that_grows_between_epochs(num_workers):
    dataset = Items([1, 2])
    loader = DataLoader(dataset, num_workers=num_workers)
    assert len(list(loader)) == 2
    dataset.items.append(3)
    assert len(loader) == 3
    assert [batch.item() for batch in loader] == [1, 2, 3]
    dataset.items[0] = 7
    assert [batch.item() for batch in loader] == [7, 2, 3]


@WORKERS
def test_several_iterators_of_one_loader_are_independent(num_workers):
    loader = DataLoader(Rows(6), batch_size=2, num_workers=num_workers)
    one, two = iter(loader), iter(loader)
    same(next(one), next(two))
    next(one)
    same(list(one), list(two)[1:])


@WORKERS
def test_an_iterator_that_has_ended_stays_at_its_end(num_workers):
    iterator = iter(DataLoader(Rows(2), num_workers=num_workers))
    assert len(list(iterator)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


@WORKERS
def test_large_and_small_batches_in_turn_equal_pytorchs(num_workers):
    sizes = [1, 2_000_000, 3, 500_000, 0, 4_000_000, 1]
    dataset = Items([torch.full((size,), float(number)) for number, size in enumerate(sizes)])
    both(dataset, num_workers, batch_size=1)


@pytest.mark.parametrize("prefetch_factor", [1, 10])
def test_any_prefetch_factor_gives_the_same_batches(prefetch_factor):
    loader = DataLoader(Rows(40), batch_size=3, num_workers=2, prefetch_factor=prefetch_factor)
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(40))


def test_batches_of_workers_can_be_written_to():
    for batch in DataLoader(Rows(8), batch_size=2, num_workers=1):
        batch += 1
        operator.setitem(batch, (0, 0), 5)
        assert batch[0, 0] == 5


def test_without_order_every_sample_comes_once():
    loader = DataLoader(Rows(50), batch_size=4, num_workers=2, in_order=False)
    assert sorted(torch.cat(list(loader))[:, 0].tolist()) == list(range(50))


def test_the_digest_of_an_epoch_depends_on_its_samples_alone():
    def digest(length, options, taken=None):
        loader = DataLoader(Rows(length), **options)
        iterator = iter(loader)
        for _ in range(taken or len(loader)):
            next(iterator)
        return iterator.digest()

    of_20 = digest(20, {"digest": True})
    assert (len(of_20[0]), of_20[1]) == (32, 20)
    assert of_20 == digest(20, {"digest": True, "num_workers": 2, "batch_size": 3, "shuffle": True})
    assert of_20 != digest(21, {"digest": True})
    first, rest = (digest(20, {"digest": True, "sampler": part}) for part in (range(8), range(8, 20)))
    assert int(of_20[0], 16) == (int(first[0], 16) + int(rest[0], 16)) % (1 << 128)
    assert digest(20, {"digest": True, "num_workers": 1}, taken=4)[1] == 4, "batches that are loaded ahead count"
    assert digest(20, {}) is None
