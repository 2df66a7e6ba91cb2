"""Workers that die: they are replaced, and the epoch is unchanged."""

import multiprocessing.resource_tracker
import os
import signal
import time
import warnings

import pytest
import torch
from torch_datasets import Draws, Rows, Slow, Stream, same
from processes import workers

from loader import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:.*worker.*:RuntimeWarning")


class DiesOnce(Rows):
    """The process that loads `index` first kills itself; `path` is a file that says whether this has happened."""

    def __init__(self, length, path, index=7, number=signal.SIGKILL):
        super().__init__(length)
        self.path, self.index, self.number = path, index, number

    def __getitem__(self, index):
        if index == self.index:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return super().__getitem__(index)
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


class DiesAlways(Rows):
    def __getitem__(self, index):
        os._exit(3)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT], ids=lambda number: number.name
)
def test_a_worker_that_dies_in_a_sample_is_replaced(number, tmp_path):
    loader = DataLoader(DiesOnce(30, tmp_path / "died", number=number), batch_size=2, num_workers=2)
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(30))
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("in_order", [True, False])
def test_workers_killed_in_mid_epoch_change_nothing(in_order):
    loader = DataLoader(Slow(60, 0.02, tuple(range(60))), batch_size=2, num_workers=2, in_order=in_order)
    batches, killed = [], 0
    for batch in loader:
        batches.append(batch)
        if len(batches) in (5, 15):
            for pid in workers():
                os.kill(pid, signal.SIGKILL)
                killed += 1
    assert killed >= 2
    values = torch.cat(batches)
    assert (values[:, 1] == values[:, 0] ** 2).all()
    numbers = values[:, 0].tolist()
    assert (numbers if in_order else sorted(numbers)) == list(range(60))


def test_a_killed_worker_of_a_stream_is_replaced_and_goes_on_where_it_was():
    expected = list(DataLoader(Stream((50, 50)), batch_size=4, num_workers=2))
    found = []
    for batch in DataLoader(Stream((50, 50)), batch_size=4, num_workers=2):
        found.append(batch)
        if len(found) == 6:
            os.kill(workers()[0], signal.SIGKILL)
    same(found, expected)


def test_a_killed_persistent_worker_is_replaced_in_this_epoch_and_the_next():
    loader = DataLoader(Rows(20), batch_size=2, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) == 3 and epoch < 2:
                os.kill(workers()[0], signal.SIGKILL)
        assert torch.cat(found)[:, 0].tolist() == list(range(20))
    # And between two epochs.
    os.kill(workers()[0], signal.SIGKILL)
    assert torch.cat(list(loader))[:, 0].tolist() == list(range(20))


def test_batches_of_a_killed_worker_that_main_has_keep_their_values():
    iterator = iter(DataLoader(Rows(40), batch_size=4, num_workers=1))
    first = next(iterator)
    os.kill(workers()[0], signal.SIGKILL)
    assert len(list(iterator)) == 9
    assert first[:, 0].tolist() == [0, 1, 2, 3]


def test_a_death_is_a_warning_that_names_the_worker(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(DataLoader(DiesOnce(10, tmp_path / "died", index=1), num_workers=1))
    texts = [str(warning.message) for warning in caught]
    assert any("worker 0" in text and "signal 9" in text.lower().replace("sigkill", "signal 9") for text in texts), (
        texts
    )


def test_a_worker_that_dies_again_and_again_ends_the_epoch():
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"):
        list(DataLoader(DiesAlways(4), num_workers=1, max_worker_deaths=2))


def test_with_on_worker_death_fail_the_first_death_ends_the_epoch(tmp_path):
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"):
        list(DataLoader(DiesOnce(10, tmp_path / "died"), num_workers=1, on_worker_death="fail"))


@pytest.mark.parametrize("number, name", [(signal.SIGSEGV, "Segmentation fault"), (signal.SIGKILL, "Killed")])
@pytest.mark.parametrize("options", [{"on_worker_death": "fail"}, {"max_worker_deaths": 1}], ids=str)
def test_death_by_a_signal_has_pytorch_s_words(number, name, options):
    with pytest.raises(RuntimeError, match=rf"^DataLoader worker \(pid \d+\) is killed by signal: {name}\. "):
        list(DataLoader(DiesOf(4, number), num_workers=1, **options))


class DiesOf(Rows):
    def __init__(self, length, number):
        super().__init__(length)
        self.number = number

    def __getitem__(self, index):
        os.kill(os.getpid(), self.number)


def test_random_numbers_of_a_shuffled_epoch_keep_their_order_after_a_death(tmp_path):
    def order(number):
        generator = torch.Generator().manual_seed(5)
        dataset = DiesOnce(30, tmp_path / str(number), index=number)
        return torch.cat(list(DataLoader(dataset, shuffle=True, num_workers=1, generator=generator)))

    (tmp_path / "99").touch()
    same(order(11), order(99))


def test_a_stopped_worker_is_replaced_after_sample_timeout():
    loader = DataLoader(Rows(30), num_workers=1, sample_timeout=2, prefetch_factor=1)
    iterator = iter(loader)
    next(iterator)
    os.kill(workers()[0], signal.SIGSTOP)
    started = time.monotonic()
    assert len(list(iterator)) == 29
    assert time.monotonic() - started < 30


def test_seeds_stay_those_of_the_worker_when_it_is_replaced():
    ids = []
    for batch in DataLoader(Draws(12), num_workers=2, worker_init_fn=None, collate_fn=first_and_id):
        ids.append(batch)
        if len(ids) == 4:
            os.kill(workers()[0], signal.SIGKILL)
    assert [index for index, _, _ in ids] == list(range(12))
    assert [worker for _, worker, _ in ids] == [number % 2 for number in range(12)]
    assert len({seed for _, _, seed in ids}) == 2


def first_and_id(samples):
    info = torch.utils.data.get_worker_info()
    return samples[0][0], info.id, info.seed


def test_a_worker_whose_interpreter_cannot_start_is_reported(monkeypatch):
    # Main starts its resource tracker before its workers, and that is an interpreter too.
    multiprocessing.resource_tracker.ensure_running()
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(RuntimeError) as error:
        list(DataLoader(Rows(3), num_workers=1, multiprocessing_context="forkserver"))
    assert "worker" in str(error.value)


def test_a_program_that_is_no_interpreter_is_reported(tmp_path):
    import multiprocessing.spawn

    before = multiprocessing.spawn.get_executable()
    for program in (tmp_path / "missing", "/bin/false"):
        multiprocessing.spawn.set_executable(str(program))
        try:
            with pytest.raises((RuntimeError, OSError)) as error:
                list(DataLoader(Rows(3), num_workers=1, max_worker_deaths=2, multiprocessing_context="forkserver"))
        finally:
            multiprocessing.spawn.set_executable(os.fsdecode(before))
        assert str(program) in str(error.value)
