"""How datasets travel to workers: what cannot travel is named, with what to do."""

import pickle
import threading

import pytest
import torch
from datasets import Items, Rows

from loader import DataLoader


def local_dataset():
    class Local(Rows):
        pass

    return Local(3)


def test_local_classes_and_functions_travel_with_cloudpickle():
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    factor = 5
    loader = DataLoader(local_dataset(), num_workers=1, collate_fn=lambda samples: samples[0] * factor, worker_init_fn=lambda worker: None)
    assert [batch.tolist() for batch in loader] == [[0, 0], [5, 5], [10, 20]]


def test_batches_of_local_classes_come_back():
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")

    class Batch:
        def __init__(self, samples):
            self.tensor = torch.stack(samples)

    (batch,) = DataLoader(Rows(2), batch_size=2, num_workers=1, collate_fn=Batch)
    assert batch.tensor.tolist() == [[0, 0], [1, 1]]


class WithLock(Rows):
    def __init__(self, length):
        super().__init__(length)
        self.connection = threading.Lock()


def test_what_cannot_be_pickled_is_named_with_what_to_do():
    for dataset, name in ((WithLock(3), "lock"), (Items([x for x in range(2)] + [(i for i in range(3))]), "generator")):
        with pytest.raises((pickle.PicklingError, TypeError)) as error:
            list(DataLoader(dataset, num_workers=1))
        text = str(error.value)
        assert name in text
        assert "worker" in text
        assert "worker_init_fn" in text or "first used" in text


def test_the_attribute_that_cannot_be_pickled_is_named():
    with pytest.raises(pickle.PicklingError, match="WithLock.*connection|connection.*WithLock"):
        list(DataLoader(WithLock(3), num_workers=1))


class OnlyInMain(Rows):
    def __setstate__(self, state):
        raise ValueError("this dataset is read by nobody")


def test_a_dataset_that_workers_cannot_read_is_reported_with_their_traceback():
    with pytest.raises(ValueError, match="this dataset is read by nobody") as error:
        list(DataLoader(OnlyInMain(3), num_workers=1))
    assert "__setstate__" in str(error.value)


class Counted(Rows):
    pickled = 0

    def __getstate__(self):
        type(self).pickled += 1
        return self.__dict__


def test_a_dataset_is_pickled_once_for_all_workers():
    Counted.pickled = 0
    list(DataLoader(Counted(4), num_workers=2))
    assert Counted.pickled == 1


def test_a_large_dataset_is_pickled_and_sent_once():
    dataset = Items([torch.full((1_000_000,), float(i)) for i in range(20)])
    sums = [batch.sum().item() for batch in DataLoader(dataset, num_workers=2)]
    assert sums == [1e6 * i for i in range(20)]


def test_a_dataset_without_torch_in_it():
    assert [batch.tolist() for batch in DataLoader(list(range(3)), num_workers=1)] == [[0], [1], [2]]
    assert list(DataLoader({"a": 1, "b": 2}, sampler=["b", "a"], batch_size=None, num_workers=1)) == [2, 1]
