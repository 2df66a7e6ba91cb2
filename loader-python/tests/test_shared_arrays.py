"""The memory of a dataset's arrays: all workers share it, and what a worker writes is its own."""

import os
import pickle
import signal
import tempfile
from multiprocessing import shared_memory

import numpy as np
import processes
import pytest
import torch
from torch.utils.data import Dataset

from loader import DataLoader
from loader._pickling import _sharing_pickler

MIB = 1 << 20


class Table(Dataset):
    """Row `i` of an array. Reports what the worker has read of it, and the worker's own memory then."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, int(self.values[index]), int(self.values[:-1].sum()), own_memory()


class Mapped(Table):
    """Five values from each seventh, their kind and strides, and the files that the worker has mapped."""

    def __getitem__(self, index):
        with open("/proc/self/maps") as lines:
            names = [line.split()[-1] for line in lines]
        return index, np.array(self.values[index * 7 : index * 7 + 5]), type(self.values), self.values.strides, names


class Counts(Table):
    """Adds 100 to each row that it loads."""

    def __getitem__(self, index):
        self.values[index] += 100
        return index, int(self.values[index]), int(self.values.sum()), os.getpid()


def own_memory():
    """Returns the bytes that are no part of a file, also of a file in memory."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize("make", [np.arange, torch.arange])
def test_workers_share_the_arrays_of_the_dataset(make):
    values = make(0, 8 * MIB)  # 64 MiB
    loader = DataLoader(Table(values), num_workers=2, collate_fn=lambda samples: samples[0])
    own = [memory for index, value, _, memory in loader if index == value]
    small = [
        memory for *_, memory in DataLoader(Table(make(0, 8)), num_workers=2, collate_fn=lambda samples: samples[0])
    ]
    assert len(own) == len(small) == 8
    assert max(own) < max(small) + 32 * MIB, "a worker has a copy"


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_a_worker_changes_a_copy_of_its_own(make):
    values = make(10_000)
    rows = list(DataLoader(Counts(values), num_workers=2, collate_fn=lambda samples: samples[0]))
    # A worker that loads row `i` has loaded every second one before.
    assert [(index, value, total) for index, value, total, _ in rows] == [
        (i, 100, 100 * (i // 2 + 1)) for i in range(8)
    ]
    assert float(values.sum()) == 0


@pytest.mark.filterwarnings("ignore:worker:RuntimeWarning")
def test_a_new_worker_has_the_arrays_as_main_sent_them():
    values = np.zeros(10_000)
    loader = DataLoader(Counts(values), num_workers=1, prefetch_factor=1, collate_fn=lambda samples: samples[0])
    batches = iter(loader)
    _, _, _, pid = next(batches)
    values += 1
    os.kill(pid, signal.SIGKILL)
    rows = list(batches)
    assert [(index, value) for index, value, *_ in rows] == [(i, 100) for i in range(1, 8)]
    assert rows[-1][3] != pid


def test_an_array_that_must_not_be_changed_stays_so():
    values = np.arange(10_000)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        list(DataLoader(Counts(values), num_workers=1))


def test_arrays_of_every_kind_arrive():
    big = np.arange(60_000, dtype=np.float32)
    dataset = [
        big,
        big.reshape(200, 300).T,
        big[::-2],
        np.asfortranarray(big.reshape(200, 300)),
        np.array([("x", 1)] * 1000, dtype=[("name", "U7"), ("number", ">i4")]),
        np.array(["a", None, 3] * 2000, dtype=object),
        np.empty((0, 5000)),
        torch.arange(9000).to(torch.bfloat16),
        torch.arange(60_000).reshape(200, 300)[::3, 1:].t(),
    ]
    loader = DataLoader(dataset, batch_size=None, num_workers=2, collate_fn=lambda value: (repr(value), value))
    for before, (shown, after) in zip(dataset, loader, strict=True):
        assert shown == repr(before) == repr(after)


def mapped_tokens(tmp_path, mode="r"):
    path = tmp_path / "tokens.bin"
    np.arange(8 * MIB, dtype=np.uint16).tofile(path)
    return np.memmap(path, np.uint16, mode, offset=16)


@pytest.mark.parametrize(
    "view",
    [
        lambda tokens: tokens,
        lambda tokens: np.asarray(tokens),
        lambda tokens: tokens[100:],
        lambda tokens: tokens[::-3],
        lambda tokens: tokens[: 6 * MIB].reshape(-1, 3)[:, 1:],
    ],
)
def test_workers_map_the_file_of_a_mapped_array(tmp_path, view):
    tokens = view(mapped_tokens(tmp_path))
    loader = DataLoader(Mapped(tokens), num_workers=1, collate_fn=lambda samples: samples[0])
    for index, rows, kind, strides, names in loader:
        assert np.array_equal(rows, tokens[index * 7 : index * 7 + 5])
        assert (kind, strides) == (type(tokens), tokens.strides)
        assert any(name.endswith("tokens.bin") for name in names)
        # The values themselves were not sent.
        assert size_of_array_files() < MIB


def size_of_array_files():
    names = processes.descriptors()
    return sum(os.stat(f"/proc/self/fd/{number}").st_size for number, name in names.items() if "loader-arrays" in name)


def test_a_mapped_array_without_its_file_is_sent(tmp_path):
    tokens = mapped_tokens(tmp_path, mode="c")
    tokens[:] = 7
    assert [value for _, value, *_ in DataLoader(Table(tokens), num_workers=1, collate_fn=lambda rows: rows[0])] == [
        7
    ] * 8
    tokens = mapped_tokens(tmp_path)
    os.remove(tmp_path / "tokens.bin")
    expected = [(i, i + 8) for i in range(8)]
    rows = DataLoader(Table(tokens), num_workers=1, collate_fn=lambda rows: rows[0][:2])
    assert list(rows) == expected


def replace_tokens(tmp_path):
    new = tmp_path / "new.bin"
    np.full(8 * MIB, 7, dtype=np.uint16).tofile(new)
    os.replace(new, tmp_path / "tokens.bin")


def test_a_mapped_array_whose_file_was_replaced_is_sent(tmp_path):
    tokens = mapped_tokens(tmp_path)
    replace_tokens(tmp_path)
    # A view of the same file finds that too.
    for view in (tokens, tokens[:100]):
        rows = DataLoader(Table(view), num_workers=2, collate_fn=lambda rows: rows[0][:2])
        assert list(rows) == [(i, i + 8) for i in range(8)]


def test_the_list_of_mappings_is_read_once_for_many_files(monkeypatch):
    reads = []
    mapped_ranges = _sharing_pickler._mapped_ranges
    monkeypatch.setattr(_sharing_pickler, "_mapped_ranges", lambda: reads.append(1) or mapped_ranges())
    # A file system whose mappings have the numbers of their files.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        arrays = [np.memmap(f"{folder}/{i}", np.uint8, "w+", shape=(4096,)) for i in range(100)]
        pickled, mappings, _ = _sharing_pickler.dumps(arrays, lambda _array: True)
    assert (len(reads), len(mappings)) == (1, 100)
    # The content was not sent.
    assert len(pickled) < 100 * 1024


def test_a_worker_refuses_a_file_that_was_truncated(tmp_path):
    tokens = mapped_tokens(tmp_path, mode="r+")
    pickled, *_ = _sharing_pickler.dumps(tokens, lambda _array: True)
    os.truncate(tmp_path / "tokens.bin", 100)
    with pytest.raises(RuntimeError, match="tokens.bin was truncated after main had sent the dataset"):
        pickle.loads(pickled)
    assert os.path.getsize(tmp_path / "tokens.bin") == 100


@pytest.mark.filterwarnings("ignore:worker:RuntimeWarning")
def test_a_new_worker_refuses_a_file_that_was_replaced(tmp_path):
    tokens = mapped_tokens(tmp_path)
    loader = DataLoader(
        Mapped(tokens),
        num_workers=1,
        prefetch_factor=1,
        collate_fn=lambda samples: samples[0][0],
        multiprocessing_context="forkserver",
    )
    batches = iter(loader)
    assert next(batches) == 0
    replace_tokens(tmp_path)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="tokens.bin was replaced after main had sent the dataset"):
        list(batches)
    # The next epoch sends the values of main's mapping.
    assert list(loader) == list(range(8))


def test_a_worker_writes_into_a_file_that_main_has_mapped_for_writing(tmp_path):
    tokens = mapped_tokens(tmp_path, mode="r+")
    list(DataLoader(Counts(tokens), num_workers=2))
    assert tokens[:9].tolist() == [i + 108 for i in range(8)] + [16]


class Attached(Dataset):
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 8

    def __getitem__(self, index):
        segment = shared_memory.SharedMemory(self.name)
        value = segment.buf[index]
        segment.close()
        return value


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_attaches_shared_memory_leaves_it_to_main(method):
    segment = shared_memory.SharedMemory(create=True, size=8)
    try:
        segment.buf[:] = bytes(range(8))
        for _ in range(2):
            loader = DataLoader(
                Attached(segment.name), batch_size=None, num_workers=1, multiprocessing_context=method
            )
            assert list(loader) == list(range(8))
    finally:
        segment.close()
        segment.unlink()


def same(value):
    return value


class Temporary:
    """An object that makes a shared tensor when it is pickled, and does not keep it."""

    def __reduce__(self):
        return same, (torch.full((4000,), 7).share_memory_(),)


class WithTemporary(Dataset):
    def __init__(self):
        self.parts = [Temporary() for _ in range(3)]

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return [part[index].item() for part in self.parts]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_get_shared_tensors_that_exist_only_while_the_dataset_is_pickled(method):
    loader = DataLoader(WithTemporary(), num_workers=2, multiprocessing_context=method, collate_fn=same)
    assert [sample for batch in loader for sample in batch] == [[7, 7, 7]] * 4
