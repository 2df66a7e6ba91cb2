"""Datasets of the tests. Workers import them from here."""

import os
import random
import time

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Rows(Dataset):
    """Row `i` is a tensor with the numbers `i` and `i * i`."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.tensor([index, index * index])


class Slow(Rows):
    """Takes `seconds` for the samples whose index is in `slow`, and none for the others."""

    def __init__(self, length: int, seconds: float, slow: tuple[int, ...]) -> None:
        super().__init__(length)
        self.seconds, self.slow = seconds, slow

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.slow:
            time.sleep(self.seconds)
        return super().__getitem__(index)


class Where(Rows):
    """Row `i` is `i`, the process id, and the id and the seed of the worker (-1 and 0 in main)."""

    def __getitem__(self, index: int) -> tuple[int, int, int, int]:
        info = get_worker_info()
        return index, os.getpid(), info.id if info else -1, info.seed if info else 0


class Draws(Rows):
    """Row `i` is `i` and a number from each of the three generators."""

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, torch.rand(()).item(), random.random(), np.random.random()


class Items(Dataset):
    """Any objects."""

    def __init__(self, items: list) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    """Numbers from 0. Each worker gives those of its own shard: `lengths` are the shards' lengths."""

    def __init__(self, lengths: tuple[int, ...], length: int | None = None) -> None:
        self.lengths = lengths
        if length is not None:
            self.length = length

    def __len__(self) -> int:
        try:
            return self.length
        except AttributeError:
            raise TypeError("this stream has no length") from None

    def __iter__(self):
        info = get_worker_info()
        mine = range(len(self.lengths)) if info is None else range(info.id, len(self.lengths), info.num_workers)
        for shard in mine:
            start = sum(self.lengths[:shard])
            yield from range(start, start + self.lengths[shard])


def same(left, right) -> None:
    """Asserts that two batches have the same types, dtypes, shapes and values."""
    assert type(left) is type(right), f"{type(left)} and {type(right)}"
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape, left.layout) == (right.dtype, right.shape, right.layout)
        assert torch.equal(left.to_dense(), right.to_dense())
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    else:
        assert left == right
