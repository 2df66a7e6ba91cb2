"""PyTorch's samplers, for use where PyTorch is not installed. Random numbers come from NumPy."""

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy
from numpy.random import Generator


class SequentialSampler:
    """The indices of a dataset in sequence."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(SequentialSampler):
    """The indices of a dataset, shuffled by ``generator``, or by a seed that is drawn from NumPy's global generator."""

    def __init__(self, data_source: Sized, generator: Generator | None = None) -> None:
        super().__init__(data_source)
        self.generator = generator
        if len(self) == 0:
            raise ValueError("num_samples should be a positive integer value, but got num_samples=0")

    def __iter__(self) -> Iterator[int]:
        generator = self.generator
        if generator is None:
            generator = numpy.random.default_rng(draw_seed(None))
        yield from generator.permutation(len(self)).tolist()


class BatchSampler:
    """The indices of a sampler, ``batch_size`` at a time."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        keys = iter(self.sampler)
        while batch := list(itertools.islice(keys, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        length = len(self.sampler)  # type: ignore[arg-type]
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)


def draw_seed(generator: Generator | None) -> int:
    """Draws a number of 63 bits, from NumPy's global generator if ``generator`` is ``None``."""
    draw = numpy.random.randint if generator is None else generator.integers
    return int(draw(0, 2**63 - 1, dtype=numpy.int64))
