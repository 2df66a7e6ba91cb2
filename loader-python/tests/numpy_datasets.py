"""Datasets of the tests without PyTorch. Workers import them from here."""

import collections
import os
import random
import signal
import sys

import numpy as np

from loader import get_worker_info

Point = collections.namedtuple("Point", ["x", "y"])


class Names(dict):
    """A mapping of one's own."""


class Numbers(list):
    """A sequence of one's own."""


class Rows:
    """Row `i` has the number `i`, an array, and whether the process has imported PyTorch."""

    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"i": index, "row": np.full((2, 3), index, np.float32), "torch": sys.modules.get("torch") is not None}


class Draws(Rows):
    def __getitem__(self, index):
        info = get_worker_info()
        return index, np.random.random(), random.random(), info.id if info else -1


class Dies(Draws):
    """Kills its process once, at sample 5."""

    def __init__(self, length, file):
        super().__init__(length)
        self.file = file

    def __getitem__(self, index):
        if index == 5 and not os.path.exists(self.file):
            open(self.file, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Stream:
    """The numbers below `length`, each of them from one worker."""

    def __init__(self, length=10, announced=None):
        self.length, self.announced = length, announced

    def __len__(self):
        if self.announced is None:
            raise TypeError("no length")
        return self.announced

    def __iter__(self):
        info = get_worker_info()
        return iter(range(self.length) if info is None else range(info.id, self.length, info.num_workers))


def plain(value):
    """Returns the value with lists in place of arrays, so that values can be compared."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
