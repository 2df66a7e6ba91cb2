"""The argument `pin_memory`."""

import warnings

import pytest
import torch
import torch.utils.data
from torch_datasets import Rows, Stream, same

from loader import DataLoader

HAS_DEVICE = torch.accelerator.is_available()


class Pinned:
    def __init__(self, values, is_pinned=False):
        self.values, self.is_pinned = values, is_pinned

    def pin_memory(self):
        return Pinned(self.values, True)


def wrapped(samples):
    """Makes a batch whose only tensors are in objects that pin themselves."""
    values = Pinned([sample[0].item() if isinstance(sample, torch.Tensor) else sample for sample in samples])
    return {"values": values, "rest": (values, [values], "text", 3, b"bytes")}


def shown(value):
    if isinstance(value, Pinned):
        return value.values, value.is_pinned
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    return type(value)(map(shown, value)) if isinstance(value, (list, tuple)) else value


@pytest.fixture
def device(monkeypatch):
    """Makes PyTorch believe that there is an accelerator. Objects with `pin_memory` need none."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", [Rows(5), Stream((5, 5))], ids=["map-style", "iterable"])
def test_with_an_accelerator_objects_in_batches_are_pinned_as_by_pytorch(device, num_workers, dataset):
    arguments = {"batch_size": 2, "collate_fn": wrapped, "pin_memory": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [shown(batch) for batch in DataLoader(dataset, num_workers=num_workers, **arguments)]
    if num_workers == 0:
        same(found, [shown(batch) for batch in torch.utils.data.DataLoader(dataset, **arguments)])
    assert all(batch["values"][1] and batch["rest"][1][0][1] for batch in found)


@pytest.mark.skipif(HAS_DEVICE, reason="SKIPPED: with an accelerator memory is pinned")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_an_accelerator_it_is_a_warning_and_nothing_is_pinned(num_workers):
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator is found"):
        (batch,) = DataLoader(Rows(2), batch_size=2, num_workers=num_workers, collate_fn=wrapped, pin_memory=True)
    assert shown(batch)["values"] == ([0, 1], False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIPPED: there is no GPU")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_tensors_are_pinned(num_workers):
    for batch in DataLoader(Rows(8), batch_size=2, num_workers=num_workers, pin_memory=True):
        assert batch.is_pinned()
        assert torch.equal(batch.to("cuda", non_blocking=True).cpu(), batch)


class Unpinnable(Pinned):
    def pin_memory(self):
        raise ValueError("this cannot be pinned")


def unpinnable(samples):
    return Unpinnable(samples)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_of_pin_memory_takes_the_place_of_the_batch(device, num_workers):
    iterator = iter(DataLoader(Rows(2), num_workers=num_workers, collate_fn=unpinnable, pin_memory=True))
    for _ in range(2):
        with pytest.raises(ValueError, match="this cannot be pinned"):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
