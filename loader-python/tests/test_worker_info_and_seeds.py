"""What a dataset learns about its worker, and the random numbers that it draws: those of PyTorch's loader."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.utils.data
from torch_datasets import Draws, Rows, Where, same

import loader
from loader import DataLoader
from test_worker_death import DiesOnce


def seeded(kind, dataset, epochs=1, **arguments):
    torch.manual_seed(3)
    made = kind(dataset, **arguments)
    return [list(made) for _ in range(epochs)]


def test_random_numbers_of_workers_are_pytorch_s():
    arguments = {"num_workers": 2, "batch_size": 3}
    same(seeded(DataLoader, Draws(14), 2, **arguments), seeded(torch.utils.data.DataLoader, Draws(14), 2, **arguments))


def test_random_numbers_of_persistent_workers_go_on_as_pytorch_s():
    arguments = {"num_workers": 2, "batch_size": 3, "persistent_workers": True, "shuffle": True}
    same(seeded(DataLoader, Draws(14), 3, **arguments), seeded(torch.utils.data.DataLoader, Draws(14), 3, **arguments))


def test_a_generator_decides_the_seeds_of_workers():
    def numbers():
        generator = torch.Generator().manual_seed(7)
        return list(DataLoader(Where(4), num_workers=2, generator=generator, collate_fn=list))

    seeds = [batch[0][3] for batch in numbers()]
    assert seeds[1] == seeds[0] + 1
    assert seeds == [batch[0][3] for batch in numbers()]
    theirs = torch.utils.data.DataLoader(
        Where(4), num_workers=2, generator=torch.Generator().manual_seed(7), collate_fn=list
    )
    assert seeds == [batch[0][3] for batch in theirs]


def test_batch_i_is_loaded_by_worker_i_modulo_their_number():
    ids = [batch[0][2] for batch in DataLoader(Where(20), batch_size=2, num_workers=3, collate_fn=list)]
    assert ids == [number % 3 for number in range(10)]


def test_there_is_no_worker_info_in_main():
    assert loader.get_worker_info() is None
    assert [batch[0][2] for batch in DataLoader(Where(2), collate_fn=list)] == [-1, -1]
    list(DataLoader(Where(2), num_workers=1, collate_fn=list))
    assert loader.get_worker_info() is None
    assert torch.utils.data.get_worker_info() is None


def described(_):
    """What a worker knows about itself."""
    theirs, ours = torch.utils.data.get_worker_info(), loader.get_worker_info()
    found = {}
    for name, info in (("theirs", theirs), ("ours", ours)):
        found[name] = (info.id, info.num_workers, info.seed, type(info.dataset).__name__, info.dataset.length)
        try:
            info.id = 5
        except (RuntimeError, dataclasses.FrozenInstanceError):
            found[name] += ("read-only",)
    found["threads"] = torch.get_num_threads()
    found["same dataset"] = theirs.dataset is ours.dataset
    return found


def test_both_packages_tell_a_dataset_about_its_worker():
    found = list(DataLoader(Rows(2), num_workers=2, collate_fn=described))
    seed = found[0]["ours"][2]
    for number, described_by in enumerate(found):
        assert described_by["ours"] == (number, 2, seed + number, "Rows", 2, "read-only")
        assert described_by["theirs"] == described_by["ours"]
        assert described_by["same dataset"]
        assert described_by["threads"] == 1


def lengthen(worker):
    torch.utils.data.get_worker_info().dataset.length = 100 + worker
    np.random.seed(5)


class Length(Draws):
    def __getitem__(self, index):
        return self.length, np.random.random()


def test_worker_init_fn_changes_the_copy_of_its_worker_after_the_seeds_are_set():
    dataset = Length(2)
    (one, two) = DataLoader(dataset, num_workers=2, worker_init_fn=lengthen, collate_fn=list)
    wanted = np.random.RandomState(5).random_sample()
    assert one == [(100, wanted)]
    assert two == [(101, wanted)]
    assert dataset.length == 2


def test_main_s_random_numbers_are_used_as_by_pytorch():
    def states(kind, num_workers):
        torch.manual_seed(1)
        list(kind(Rows(4), num_workers=num_workers))
        return torch.get_rng_state()

    expected = states(torch.utils.data.DataLoader, 0)
    for num_workers in (0, 1):
        assert torch.equal(states(DataLoader, num_workers), expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_environment_and_the_arguments_of_main_are_the_worker_s(num_workers, monkeypatch, tmp_path):
    monkeypatch.setenv("LOADER_TEST_VALUE", "7")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "only_here_module.py").write_text(
        "def first(samples):\n    import os\n    return os.environ['LOADER_TEST_VALUE']\n"
    )
    import only_here_module

    assert list(DataLoader(Rows(1), num_workers=num_workers, collate_fn=only_here_module.first)) == ["7"]


class Nested(Rows):
    """Each sample is made of the batches of another loader. Samples of odd indices fail."""

    def __getitem__(self, index):
        batches = DataLoader(Failing(index) if index % 2 else Rows(index), batch_size=2, collate_fn=lengths)
        try:
            return index, list(batches)
        except ValueError as error:
            return index, repr(error)


class Failing(Rows):
    def __getitem__(self, index):
        raise ValueError("inner")


def lengths(samples):
    return len(samples)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_dataset_may_use_a_loader_without_workers(num_workers):
    loader = DataLoader(Nested(6), batch_size=2, num_workers=num_workers, collate_fn=list)
    failed = "ValueError('inner')"
    expected = [(0, []), (1, failed), (2, [2]), (3, failed), (4, [2, 2]), (5, failed)]
    assert [sample for batch in loader for sample in batch] == expected


class NestedWorkers(Rows):
    def __getitem__(self, index):
        return list(DataLoader(Rows(2), num_workers=1))


def test_a_loader_in_a_worker_cannot_have_workers():
    with pytest.raises(RuntimeError, match="must load with num_workers=0"):
        list(DataLoader(NestedWorkers(1), num_workers=1))


class DrawsThenDies(DiesOnce):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        return row[0].item(), torch.rand(()).item()


class ManyNotAList(Draws):
    def __getitems__(self, indices):
        return tuple(self[index] for index in indices)


@pytest.mark.filterwarnings("ignore:.*worker.*:RuntimeWarning")
@pytest.mark.parametrize("arguments", [{}, {"on_bad_sample": "skip"}], ids=str)
def test_seeded_samples_of_a_dataset_with_getitems_depend_on_nothing_else(arguments, tmp_path):
    """A `Subset` has `__getitems__`."""

    def samples(path, **others):
        subset = torch.utils.data.Subset(DrawsThenDies(12, path), range(12))
        (batches,) = seeded(DataLoader, subset, seed_samples=True, collate_fn=list, **arguments, **others)
        return sum(batches, [])

    lives = tmp_path / "lives"
    lives.touch()
    expected = samples(lives, batch_size=4)
    assert len({number for _, number in expected}) == 12
    assert samples(lives, batch_size=3, num_workers=2) == expected
    assert samples(tmp_path / "dies", batch_size=4, num_workers=1) == expected
    assert (tmp_path / "dies").exists()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_seeded_samples_need_a_list_of_getitems(num_workers):
    with pytest.raises(TypeError, match="must return a list with one sample for each key, and it has returned tuple"):
        list(DataLoader(ManyNotAList(4), batch_size=2, num_workers=num_workers, seed_samples=True))
    assert len(list(DataLoader(ManyNotAList(4), batch_size=2, num_workers=num_workers))) == 2
