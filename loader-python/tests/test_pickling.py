"""Datasets that can and cannot be sent to workers; the errors name the part that cannot be pickled."""

import copy
import json
import multiprocessing
import pickle
import threading

import processes
import pytest
import torch
from torch_datasets import Items, Rows

from loader import DataLoader


def local_dataset():
    class Local(Rows):
        pass

    return Local(3)


def test_local_classes_and_functions_travel_with_cloudpickle():
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    factor = 5
    loader = DataLoader(
        local_dataset(),
        num_workers=1,
        collate_fn=lambda samples: samples[0] * factor,
        worker_init_fn=lambda worker: None,
    )
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
            list(DataLoader(dataset, num_workers=1, multiprocessing_context="forkserver"))
        text = str(error.value)
        assert name in text
        assert "worker" in text
        assert "worker_init_fn" in text or "first used" in text


def test_the_attribute_that_cannot_be_pickled_is_named():
    nested = Items([{"a": 1}, {"b": WithLock(3)}])
    for dataset, path in (
        (WithLock(3), "attribute 'connection' of the dataset (WithLock)"),
        (nested, "attribute 'connection' of element 'b' of element 1 of attribute 'items' of the dataset (Items)"),
    ):
        with pytest.raises(pickle.PicklingError) as error:
            list(DataLoader(dataset, num_workers=1, multiprocessing_context="forkserver"))
        assert str(error.value).startswith(f"{path} cannot be sent to the workers: cannot pickle '_thread.lock' object")
    with pytest.raises(pickle.PicklingError, match=r"^worker_init_fn \(.*\) cannot be sent"):
        list(DataLoader(Rows(3), num_workers=1, multiprocessing_context="forkserver", worker_init_fn=threading.Lock().acquire))


def test_with_cloudpickle_an_attribute_that_it_can_send_is_not_named():
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    dataset = WithLock(3)
    dataset.__dict__ = {"function": lambda: None, **dataset.__dict__}
    with pytest.raises(pickle.PicklingError, match=r"^attribute 'connection' of the dataset \(WithLock\)"):
        list(DataLoader(dataset, num_workers=1, multiprocessing_context="forkserver"))


def test_an_open_text_file_is_refused_with_its_attribute(tmp_path):
    (tmp_path / "lines.txt").write_text("a line\n" * 3)
    with open(tmp_path / "lines.txt") as file:
        dataset = Items(range(3))
        dataset.lines = file
        with pytest.raises(pickle.PicklingError, match=r"^attribute 'lines' of the dataset \(Items\) cannot be sent"):
            list(DataLoader(dataset, num_workers=1, multiprocessing_context="forkserver"))
        # cloudpickle would copy the content of the file to the workers.
        dataset.function = lambda: None
        with pytest.raises(pickle.PicklingError, match=r"^attribute 'lines' of the dataset \(Items\) .*<_io.Text"):
            list(DataLoader(dataset, num_workers=1, multiprocessing_context="forkserver"))


def test_main_pickles_a_dataset_of_a_guarded_script_once(tmp_path):
    """The names under the guard are also in the dataset, as an attribute and as a string."""
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(
        "import sys\nsys.modules['torch'] = None  # It takes long to import.\nfrom loader import DataLoader\n"
        "class Once:\n"
        "    def __init__(self): self.size, self.names, self.pickled = 3, ['size', 'shift', '__main__'], 0\n"
        "    def __len__(self): return self.size\n"
        "    def __getitem__(self, index): return index\n"
        "    def __getstate__(self):\n"
        "        self.pickled += 1\n"
        "        return self.__dict__\n"
        "def load(rows, **options):\n"
        "    batches = DataLoader(rows, 3, num_workers=1, multiprocessing_context='forkserver', **options)\n"
        "    print([list(map(int, batch)) for batch in batches], rows.pickled)\n"
        "if __name__ == '__main__':\n"
        "    size, shift = 3, 10\n"
        "    load(Once())\n"
        "    load(Once(), collate_fn=lambda samples: [sample + shift for sample in samples])\n"
    )
    assert processes.run(path).splitlines() == ["[[0, 1, 2]] 1", "[[10, 11, 12]] 1"]


def test_workers_get_proxies_of_functions_and_classes_as_they_pickle_themselves(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(
        "import copyreg, sys\nsys.modules['torch'] = None  # It takes long to import.\nfrom loader import DataLoader\n"
        "class Proxy:\n"
        "    __class__ = property(lambda self: type(self.function))\n"
        "    def __init__(self, function): self.function = function\n"
        "    def __getattr__(self, name): return getattr(object.__getattribute__(self, 'function'), name)\n"
        "    def __call__(self, samples): return ['called by a proxy', *self.function(samples)]\n"
        "    def __reduce_ex__(self, protocol): return Proxy, (self.function,)\n"
        "def collate(samples): return samples\n"
        "class Meta(type): pass\n"
        "made = {}\n"
        "def make(name): return made[name] if name in made else made.setdefault(name, Meta(name, (), {}))\n"
        "copyreg.pickle(Meta, lambda made: (make, (made.__name__,)))\n"
        "class Rows:\n"
        "    def __init__(self): self.kind = make('Kind')\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, index): return self.kind is make('Kind')\n"
        "if __name__ == '__main__':\n"
        "    for function in (collate, Proxy(collate)):\n"
        "        options = {'num_workers': 1, 'multiprocessing_context': 'forkserver', 'collate_fn': function}\n"
        "        print(list(DataLoader(Rows(), **options)))\n"
    )
    assert processes.run(path).splitlines() == ["[[True]]", "[['called by a proxy', True]]"]


def test_workers_get_a_function_without_a_module(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    source = """
import sys
sys.modules["torch"] = None  # It takes long to import.
from loader import DataLoader

variables = {}
exec("def double(samples): return [2 * each for each in samples]", variables)
double = variables["double"]
print(list(DataLoader(range(2), num_workers=1, collate_fn=double, multiprocessing_context="forkserver")))
"""
    path = tmp_path / "script.py"
    path.write_text(source)
    assert processes.run(path) == "[[0], [2]]\n"


def test_workers_get_type_variables_of_a_script_without_a_guard(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    (tmp_path / "rows_of_a_library.py").write_text(
        "class Rows:\n"
        "    def __init__(self, kind): self.kind = kind\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, index): return str(self.kind)\n"
    )
    path = tmp_path / "train.py"
    path.write_text(
        "import sys\nsys.modules['torch'] = None  # It takes long to import.\nfrom typing import TypeVar\n"
        "import rows_of_a_library\nfrom loader import DataLoader\n"
        "T = TypeVar('T')\n"
        "print(list(DataLoader(rows_of_a_library.Rows(T), num_workers=1, multiprocessing_context='forkserver')))\n"
    )
    assert processes.run(path) == "[['~T']]\n"


class OnlyInMain(Rows):
    def __setstate__(self, state):
        raise ValueError("this dataset is read by nobody")


def test_a_dataset_that_workers_cannot_read_is_reported_with_their_traceback():
    with pytest.raises(ValueError, match="this dataset is read by nobody") as error:
        list(DataLoader(OnlyInMain(3), num_workers=1, multiprocessing_context="forkserver"))
    assert "__setstate__" in str(error.value)


class Counted(Rows):
    pickled = 0

    def __getstate__(self):
        type(self).pickled += 1
        return self.__dict__


def test_a_dataset_is_pickled_once_for_all_workers():
    Counted.pickled = 0
    list(DataLoader(Counted(4), num_workers=2, multiprocessing_context="forkserver"))
    assert Counted.pickled == 1


def test_a_large_dataset_is_pickled_and_sent_once():
    dataset = Items([torch.full((1_000_000,), float(i)) for i in range(20)])
    sums = [batch.sum().item() for batch in DataLoader(dataset, num_workers=2, multiprocessing_context="forkserver")]
    assert sums == [1e6 * i for i in range(20)]


def test_a_dataset_without_torch_in_it():
    assert [batch.tolist() for batch in DataLoader(list(range(3)), num_workers=1)] == [[0], [1], [2]]
    assert list(DataLoader({"a": 1, "b": 2}, sampler=["b", "a"], batch_size=None, num_workers=1)) == [2, 1]


@pytest.mark.parametrize(
    "dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2, torch.bfloat16, torch.bool], ids=str
)
def test_a_dataset_may_have_tensors_of_any_type(dtype):
    tensor = torch.arange(6).view(2, 3).to(dtype)
    for batch, row in zip(DataLoader(tensor, batch_size=None, num_workers=1, multiprocessing_context="forkserver"), tensor, strict=True):
        assert batch.dtype == dtype
        assert torch.equal(batch.float(), row.float())


class Size(Items):
    """Row `i` is the size of the storage of item `i`, and whether item 0 has the same storage."""

    def __getitem__(self, index):
        first, item = self.items[0], self.items[index]
        return item.untyped_storage().nbytes(), first.untyped_storage().data_ptr() == item.untyped_storage().data_ptr()


def test_tensors_that_share_a_storage_are_sent_with_one_and_share_it_in_the_worker():
    whole = torch.arange(200_000.0).view(1000, 200)
    views = [*whole, whole.t(), torch.empty(0, 3)]
    rows = list(DataLoader(Items(views), batch_size=None, num_workers=1, multiprocessing_context="forkserver"))
    assert all(torch.equal(row, view) for row, view in zip(rows, views, strict=True))
    sizes = list(DataLoader(Size(views), batch_size=None, num_workers=1, multiprocessing_context="forkserver"))
    assert sizes[:-1] == [[800_000, True]] * 1001


class Shared(Rows):
    """Counts in memory that it shares with main."""

    def __init__(self, length, tensor, value, queue):
        super().__init__(length)
        self.tensor, self.value, self.queue = tensor, value, queue

    def __getitem__(self, index):
        with self.value.get_lock():
            self.value.value += 1
            self.tensor[index] += 1
        self.queue.put(index)
        return index


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_multiprocessing_shares_is_shared_with_workers(method):
    context = multiprocessing.get_context("fork" if method == "fork" else "spawn")
    dataset = Shared(5, torch.zeros(5).share_memory_(), context.Value("i", 0), context.Queue())
    for _ in range(2):
        assert len(list(DataLoader(dataset, num_workers=2, multiprocessing_context=method))) == 5
    assert dataset.value.value == 10
    assert dataset.tensor.tolist() == [2] * 5
    assert sorted(dataset.queue.get() for _ in range(10)) == sorted([*range(5)] * 2)


class Putting:
    """Puts a thousand numbers into a queue for each sample. A thread of the queue writes them."""

    def __init__(self, queue):
        self.queue = queue

    def __len__(self):
        return 2

    def __getitem__(self, index):
        for number in range(1000):
            self.queue.put(1000 * index + number)
        return index


def test_a_worker_writes_what_is_in_its_queues_before_it_ends():
    dataset = Putting(multiprocessing.get_context("spawn").Queue())
    assert len(list(DataLoader(dataset, num_workers=2))) == 2
    assert sorted(dataset.queue.get(timeout=30) for _ in range(2000)) == list(range(2000))


def test_a_lock_that_only_forks_can_share_is_refused_with_what_to_do():
    dataset = Shared(5, torch.zeros(5), multiprocessing.get_context("fork").Value("i", 0), None)
    with pytest.raises(pickle.PicklingError, match="fork context"):
        list(DataLoader(dataset, num_workers=2, multiprocessing_context="forkserver"))


COPIES = {"pickle": lambda loader: pickle.loads(pickle.dumps(loader)), "copy": copy.copy, "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_copy_of_a_loader_begins_with_an_epoch_of_its_own(copied, num_workers):
    loader = DataLoader(Rows(4), num_workers=num_workers, persistent_workers=num_workers > 0, max_bad_samples=3)
    assert len(list(COPIES[copied](loader))) == 4
    iterator = iter(loader)
    next(iterator)
    other = COPIES[copied](loader)
    assert other.max_bad_samples == 3
    state = other.state_dict()
    assert json.loads(state["content"])["at"] == "between"
    next(iterator)
    assert other.state_dict() == state
    assert json.loads(loader.state_dict()["content"])["returned"] == 2
    assert len(list(other)) == 4
    assert len(list(iterator)) == 2


def test_a_copy_of_a_loader_that_has_loaded_a_state_continues_from_it():
    loader = DataLoader(Rows(4))
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 3


class WithLoader(Rows):
    """Each sample is an epoch of a loader that the dataset has."""

    def __init__(self, length):
        super().__init__(length)
        self.inner = DataLoader(Rows(3))

    def __getitem__(self, index):
        return torch.cat(list(self.inner))


def test_a_dataset_with_a_loader_that_main_has_used_travels():
    dataset = WithLoader(2)
    expected = dataset[0]
    for batch in DataLoader(dataset, batch_size=None, num_workers=1):
        assert torch.equal(batch, expected)
