"""Iterable datasets: each worker has a copy and gives its own shard; batches come from the workers in turn."""

import warnings

import pytest
import torch
import torch.utils.data
from torch_datasets import Rows, Stream, same
from torch.utils.data import ChainDataset, IterableDataset

from loader import DataLoader


def both(dataset, **arguments):
    theirs = list(torch.utils.data.DataLoader(dataset, **arguments))
    ours = list(DataLoader(dataset, **arguments))
    same(ours, theirs)
    return ours


class Unsharded(IterableDataset):
    def __iter__(self):
        return iter(range(5))


class Itself(IterableDataset):
    """Its own iterator, with `__next__`."""

    def __iter__(self):
        self.next = 0
        return self

    def __next__(self):
        if self.next == 7:
            raise StopIteration
        self.next += 1
        return self.next


ARGUMENTS = pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 7}, {"batch_size": 7, "drop_last": True}, {"batch_size": None}], ids=str
)


@ARGUMENTS
@pytest.mark.parametrize("lengths", [(0, 4, 20), (8, 8, 8), (0, 0, 0)], ids=str)
def test_without_workers_one_shard_comes_after_the_other(arguments, lengths):
    both(Stream(lengths), **arguments)


@ARGUMENTS
@pytest.mark.parametrize("lengths", [(24, 3), (0, 15, 4), (0, 0)], ids=str)
def test_batches_come_from_the_workers_in_turn_as_in_pytorch(arguments, lengths):
    both(Stream(lengths), num_workers=2, **arguments)


@pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning")
def test_three_workers_of_which_one_has_nothing_and_one_much():
    both(Stream((4, 0, 40)), num_workers=3, batch_size=3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_shards_each_worker_gives_everything(num_workers):
    numbers = [batch.item() for batch in both(Unsharded(), num_workers=num_workers)]
    assert sorted(numbers) == sorted(list(range(5)) * max(num_workers, 1))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_that_is_its_own_iterator(num_workers):
    both(Itself(), num_workers=num_workers, batch_size=3)


@pytest.mark.parametrize("num_workers, persistent_workers", [(0, False), (2, False), (2, True)])
def test_each_epoch_has_the_same_batches(num_workers, persistent_workers):
    loader = DataLoader(Stream((5, 3)), num_workers=num_workers, persistent_workers=persistent_workers)
    first, *others = [[batch.item() for batch in loader] for _ in range(4)]
    assert others == [first] * 3


def test_a_chain_is_loaded_and_one_with_a_map_style_dataset_refused():
    chain = Stream((3,)) + ChainDataset([Stream((2,)), Unsharded()])
    assert len(both(chain, batch_size=4)) == 3
    for num_workers in (0, 1):
        with pytest.raises(AssertionError, match="ChainDataset only supports IterableDataset"):
            list(DataLoader(ChainDataset([Stream((2,)), Rows(3)]), num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_more_samples_than_the_length_says_give_pytorch_s_warning(num_workers):
    def warned(kind):
        loader = kind(Stream((6, 6), length=8), batch_size=None, num_workers=num_workers)
        assert len(loader) == 8
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(loader)
        texts = [str(warning.message) for warning in caught if "Length of IterableDataset" in str(warning.message)]
        # The text contains the address of the dataset.
        return [text.split(" object at ")[0] + text.partition("> ")[2] for text in texts]

    theirs = warned(torch.utils.data.DataLoader)
    assert theirs
    assert warned(DataLoader) == theirs


@pytest.mark.parametrize("in_order", [True, False])
def test_an_infinite_stream_can_be_left(in_order):
    loader = DataLoader(Stream((10**12, 10**12)), batch_size=4, num_workers=2, in_order=in_order)
    iterator = iter(loader)
    numbers = torch.cat([next(iterator) for _ in range(20)]).tolist()
    assert len(set(numbers)) == 80
