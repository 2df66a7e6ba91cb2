"""The options that PyTorch's loader does not have: what a program sees of each."""

import os
import time
import warnings

import pytest
import torch
from torch_datasets import Items, Rows, Slow, same

from loader import DataLoader

MIB = 1 << 20


def warnings_of(loader):
    """Loads an epoch. Returns its batches and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(loader)
    return batches, [str(warning.message) for warning in caught]


class SlowOnce(Rows):
    """The process that loads row 9 first takes 100 seconds; `path` is a file that says whether this has happened."""

    def __init__(self, length, path):
        super().__init__(length)
        self.path = path

    def __getitem__(self, index):
        if index == 9:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                time.sleep(100)
            except FileExistsError:
                pass
        return super().__getitem__(index)


def test_hedge_gives_a_late_batch_to_a_second_worker(tmp_path):
    started = time.monotonic()
    loader = DataLoader(SlowOnce(12, tmp_path / "began"), num_workers=2, hedge=True, move_tasks=True)
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(12))
    assert (tmp_path / "began").exists()
    assert time.monotonic() - started < 60


class Grows(Rows):
    """Keeps 20 MiB more for each row."""

    def __init__(self, length):
        super().__init__(length)
        self.kept = []

    def __getitem__(self, index):
        self.kept.append(bytearray(b"1") * (20 * MIB))
        return super().__getitem__(index)


def test_worker_memory_limit_replaces_a_worker_that_grows():
    batches, texts = warnings_of(DataLoader(Grows(40), batch_size=2, num_workers=1, worker_memory_limit="200 MB"))
    same(batches, list(DataLoader(Rows(40), batch_size=2)))
    assert any("worker_memory_limit" in text for text in texts), texts


def test_memory_limit_bounds_the_batches_that_the_program_keeps():
    dataset = Items([torch.zeros(1 << 18)] * 40)
    with pytest.raises(RuntimeError, match="memory_limit"):
        list(DataLoader(dataset, num_workers=1, memory_limit="16 MiB"))
    assert len(list(DataLoader(dataset, num_workers=1, memory_limit="1 GiB"))) == 40


class Cpus(Rows):
    def __getitem__(self, _index):
        return sorted(os.sched_getaffinity(0))


def test_worker_affinity_binds_each_worker():
    allowed = sorted(os.sched_getaffinity(0))
    made = {"num_workers": 2, "batch_size": None, "collate_fn": list}
    for cpus in DataLoader(Cpus(4), worker_affinity="spread", **made):
        assert len(cpus) == 1
    sets = [{allowed[0]}, set(allowed)]
    assert list(DataLoader(Cpus(4), worker_affinity=sets, **made)) == [allowed[:1], allowed] * 2


def test_warn_after_names_the_worker_that_is_awaited():
    batches, texts = warnings_of(DataLoader(Slow(4, 1.5, (2,)), num_workers=1, warn_after=0.3))
    assert torch.cat(batches)[:, 0].tolist() == list(range(4))
    assert any(text.startswith("no batch for 300ms: waiting for worker 0") for text in texts), texts
    _, texts = warnings_of(DataLoader(Slow(4, 1.5, (2,)), num_workers=1))
    assert texts == []


class Bad(Rows):
    def __getitem__(self, index):
        if index % 2:
            raise ValueError("an odd row")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*sample:RuntimeWarning")
def test_one_bad_sample_more_than_max_bad_samples_ends_the_epoch(num_workers):
    options = {"num_workers": num_workers, "on_bad_sample": "skip"}
    with pytest.raises(RuntimeError, match="max_bad_samples"):
        list(DataLoader(Bad(8), max_bad_samples=3, **options))
    assert torch.cat(list(DataLoader(Bad(8), max_bad_samples=4, **options)))[:, 0].tolist() == [0, 2, 4, 6]


class Stacked(Bad):
    """Gives the rows of a batch in one tensor."""

    def __getitems__(self, indices):
        return torch.stack([self[index] for index in indices])


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("option", ["skip", "replace"])
@pytest.mark.filterwarnings("ignore:.*sample:RuntimeWarning")
def test_with_on_bad_sample_samples_of_getitems_must_be_a_list(option, num_workers):
    loader = DataLoader(
        Stacked(8), batch_size=8, num_workers=num_workers, on_bad_sample=option, collate_fn=list, max_bad_samples=100
    )
    with pytest.raises(TypeError, match="with on_bad_sample, __getitems__ must return a list.*returned Tensor"):
        list(loader)


@pytest.mark.parametrize("state", [True, False])
def test_the_warning_of_a_death_tells_of_a_state_that_begins_again(state, tmp_path):
    dataset = (Counts if state else Dies)(8, tmp_path / "died")
    _, texts = warnings_of(DataLoader(dataset, num_workers=1))
    text = next(text for text in texts if "worker 0" in text)
    assert ("begins with the state that the dataset had" in text) == state


class Dies(Rows):
    def __init__(self, length, path):
        super().__init__(length)
        self.path = path

    def __getitem__(self, index):
        if index == 3 and not self.path.exists():
            self.path.touch()
            os._exit(1)
        return super().__getitem__(index)


class Counts(Dies):
    """Counts the samples that it has loaded."""

    def __init__(self, length, path):
        super().__init__(length, path)
        self.count = 0

    def __getitem__(self, index):
        self.count += 1
        return super().__getitem__(index)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
