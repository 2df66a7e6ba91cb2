"""Workers that stay for several epochs."""

import gc
import os
import time

import processes
import pytest
import torch
import torch.utils.data
from torch_datasets import Rows, Where

from loader import DataLoader


def pids(loader):
    return {pid for batch in loader for _, pid, _, _ in batch}


def test_the_same_processes_load_all_epochs():
    loader = DataLoader(Where(8), num_workers=2, persistent_workers=True, collate_fn=list)
    first = pids(loader)
    assert len(first) == 2
    assert [pids(loader) for _ in range(3)] == [first] * 3
    del loader
    gc.collect()
    assert processes.wait_until(lambda: not first & processes.children().keys(), 5)


def test_other_workers_load_the_next_epoch_without_it():
    loader = DataLoader(Where(4), num_workers=1, collate_fn=list)
    assert not pids(loader) & pids(loader)


class Growing(Rows):
    """Notes how many samples its copy has given."""

    given = 0

    def __getitem__(self, index):
        self.given += 1
        return self.given


def test_the_copy_of_the_dataset_stays_and_changes_in_main_are_not_seen():
    dataset = Growing(4)
    loader = DataLoader(dataset, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        assert [batch.item() for batch in loader] == [4 * epoch + number for number in (1, 2, 3, 4)]
        dataset.given = 1000
    assert dataset.given == 1000


def test_iterating_again_returns_the_same_iterator_at_its_beginning():
    loader = DataLoader(Rows(10), num_workers=1, persistent_workers=True)
    one = iter(loader)
    assert [next(one)[0, 0].item() for _ in range(3)] == [0, 1, 2]
    two = iter(loader)
    assert one is two
    assert [batch[0, 0].item() for batch in two] == list(range(10))


def test_an_epoch_that_was_left_early_leaves_nothing_in_the_next():
    loader = DataLoader(Rows(50), num_workers=2, persistent_workers=True)
    for stop in (0, 1, 7, 20):
        for number, batch in enumerate(loader):
            assert batch[0, 0] == number
            if number == stop:
                break
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(50))


def begin(worker):
    torch.utils.data.get_worker_info().dataset.begun = (
        getattr(torch.utils.data.get_worker_info().dataset, "begun", 0) + 1
    )


class Begun(Rows):
    def __getitem__(self, index):
        return self.begun


def test_worker_init_fn_is_called_once():
    loader = DataLoader(Begun(2), num_workers=1, persistent_workers=True, worker_init_fn=begin)
    assert [batch.item() for _ in range(3) for batch in loader] == [1] * 6


class Counting(Rows):
    """Counts the samples of its worker. Sample 2 takes longer than workers get to end."""

    count = 0

    def __getitem__(self, index):
        self.count += 1
        if index == 2 and self.count == 3:
            time.sleep(5.5)
        return self.count


def test_workers_finish_a_slow_batch_that_break_has_left():
    loader = DataLoader(Counting(4), num_workers=1, persistent_workers=True, prefetch_factor=2)
    for _ in loader:
        break
    assert [batch.item() for batch in loader] == [4, 5, 6, 7]


class Tagged:
    """A sampler whose keys name the process that asks for them."""

    def __len__(self):
        return 40

    def __iter__(self):
        return (f"{os.getpid()}-{number}" for number in range(40))


class Slow:
    def __getitem__(self, key):
        time.sleep(0.02)
        return key


@pytest.mark.filterwarnings("ignore:persistent workers:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_change_the_keys_of_its_parent():
    loader = DataLoader(
        Slow(), batch_size=2, sampler=Tagged(), num_workers=2, prefetch_factor=10, persistent_workers=True, collate_fn=list
    )
    assert len(list(loader)) == 20
    child = os.fork()
    found = [key for batch in loader for key in batch]
    is_right = found == [f"{os.getpid()}-{number}" for number in range(40)]
    if child == 0:
        del loader
        os._exit(0 if is_right else 1)
    assert is_right, found
    assert os.waitpid(child, 0)[1] == 0
