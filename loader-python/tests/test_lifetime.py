"""Iterators, loaders and batches can be abandoned at any place and in any order; nothing is left, and no batch
changes."""

import gc
import itertools
import os
import weakref

import numpy as np
import processes
import pytest
import torch
from torch_datasets import Items, Rows, Stream

from loader import DataLoader
from loader._main import _iterator

FOLDER = os.path.dirname(__file__)


def gone(pids):
    return processes.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 5)


@pytest.mark.parametrize("dataset", [Rows(1000), Stream((1000, 1000))], ids=["map-style", "iterable"])
@pytest.mark.parametrize("taken", [0, 1, 5])
def test_an_abandoned_iterator_ends_its_workers(dataset, taken):
    iterator = iter(DataLoader(dataset, num_workers=2))
    for _ in range(taken):
        next(iterator)
    workers = set(processes.children())
    del iterator
    gc.collect()
    assert gone(workers)


def test_leaving_a_loop_ends_the_workers():
    before = set(processes.children())
    for _ in DataLoader(Rows(100), num_workers=1):
        break
    gc.collect()
    assert gone(set(processes.children()) - before)


@pytest.mark.parametrize("order", list(itertools.permutations(["loader", "iterator", "batch"])), ids="-".join)
def test_loader_iterator_and_batch_can_go_in_any_order(order):
    alive = {"loader": DataLoader(Rows(50), batch_size=4, num_workers=1)}
    alive["iterator"] = iter(alive["loader"])
    alive["batch"] = next(alive["iterator"])
    for name in order:
        if "batch" in alive:
            assert alive["batch"][3].tolist() == [3, 9]
        del alive[name]
        gc.collect()


def generate(loader):
    yield from loader


def test_a_generator_over_a_loader_can_be_abandoned():
    batches = generate(DataLoader(Rows(100), num_workers=1))
    next(batches)
    batches.close()
    batches = generate(DataLoader(Rows(100), num_workers=1))
    next(batches)
    del batches
    batches = generate(DataLoader(Rows(100), num_workers=1))
    next(batches)
    with pytest.raises(ZeroDivisionError):
        batches.throw(ZeroDivisionError())


def test_the_dataset_is_released():
    for num_workers in (0, 1):
        dataset = Rows(20)
        released = weakref.ref(dataset)
        iterator = iter(DataLoader(dataset, num_workers=num_workers))
        next(iterator)
        del dataset, iterator
        gc.collect()
        assert released() is None


def test_a_cycle_with_an_iterator_is_collected():
    class Trainer:
        pass

    trainer = Trainer()
    trainer.loader = DataLoader(Rows(100), num_workers=1)
    trainer.iterator = iter(trainer.loader)
    trainer.itself = trainer
    next(trainer.iterator)
    workers, released = set(processes.children()), weakref.ref(trainer)
    del trainer
    gc.collect()
    assert released() is None
    assert gone(workers)


def arrays(samples):
    stacked = torch.stack(samples)
    return stacked, stacked.numpy() * 2, {"a": stacked.float()}


def test_batches_outlive_their_loader_unchanged():
    """A batch, a slice of one, and a NumPy view of one keep their values while hundreds of later batches use shared
    memory."""
    dataset = Items([torch.full((1000,), float(number)) for number in range(600)])
    loader = DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=arrays)
    kept = {"tensors": [], "slices": [], "views": [], "arrays": []}
    for number, (tensor, array, other) in enumerate(loader):
        if number % 3 == 0:
            kept["tensors"].append((number, tensor))
            kept["slices"].append((number, other["a"][1, 10:20]))
            kept["views"].append((number, tensor.numpy()[0, ::100]))
            kept["arrays"].append((number, array))
        del tensor, array, other
    del loader
    gc.collect()
    list(DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=arrays))
    for number, tensor in kept["tensors"]:
        assert torch.equal(tensor, torch.tensor([[2.0 * number], [2.0 * number + 1]]).expand(2, 1000))
    for number, part in kept["slices"]:
        assert torch.equal(part, torch.full((10,), 2.0 * number + 1))
    for number, view in kept["views"]:
        np.testing.assert_array_equal(view, np.full(10, 2.0 * number))
    for number, array in kept["arrays"]:
        np.testing.assert_array_equal(array[:, 0], [4.0 * number, 4.0 * number + 2])


def test_writing_to_a_batch_changes_no_other():
    loader = DataLoader(Rows(400), batch_size=2, num_workers=2)
    kept = []
    for batch in loader:
        batch.fill_(-1)
        kept.append(batch)
    for number, batch in enumerate(loader):
        assert batch[:, 0].tolist() == [2 * number, 2 * number + 1]
    assert all((batch == -1).all() for batch in kept)


def test_a_thousand_kept_batches_need_no_descriptor_each():
    before = len(processes.descriptors())
    kept = list(DataLoader(Rows(1000), num_workers=1))
    assert len(processes.descriptors()) < before + 50
    assert torch.cat(kept)[:, 0].tolist() == list(range(1000))


def test_many_epochs_leave_nothing():
    loader = DataLoader(Rows(10), num_workers=1)
    list(loader)
    gc.collect()
    # Libraries of other tests may keep shared memory of their own.
    before, shared = processes.descriptors(), processes.shared_memory()
    for _ in range(4):
        list(loader)
    gc.collect()
    assert processes.wait_until(lambda: len(processes.descriptors()) <= len(before), 5), (
        processes.descriptors().items() - before.items()
    )
    assert processes.shared_memory() <= shared


HEAD = f"""
import os, sys
sys.path.insert(0, {FOLDER!r})
import torch
from torch_datasets import Rows, Slow, Stream
from loader import DataLoader
"""
LAST = {
    "an iterator that has begun": "iterator = iter(DataLoader(Rows(100), num_workers=2)); next(iterator)",
    "an iterator that has not been used": "iterator = iter(DataLoader(Rows(100), num_workers=2))",
    "an iterator whose workers are busy": (
        "iterator = iter(DataLoader(Slow(100, 30, (1,)), num_workers=1)); next(iterator)"
    ),
    "persistent workers": "loader = DataLoader(Rows(9), num_workers=2, persistent_workers=True); list(loader)",
    "a stream": "iterator = iter(DataLoader(Stream((10**9,)), num_workers=1)); next(iterator)",
    "a batch": "batch = next(iter(DataLoader(Rows(100), num_workers=1)))",
    "a cycle": "a = []; a.append((a, iter(DataLoader(Rows(100), num_workers=1)))); next(a[0][1])",
    "an iterator in a module": "torch.kept = iter(DataLoader(Rows(100), num_workers=1)); next(torch.kept)",
    "sys.exit": "iterator = iter(DataLoader(Rows(100), num_workers=1)); next(iterator); sys.exit(0)",
    "a thread that iterates": """
import threading, time
def iterate():
    for batch in DataLoader(Slow(100, 0.1, tuple(range(100))), num_workers=1): pass
threading.Thread(target=iterate, daemon=True).start()
time.sleep(3)
""",
}


@pytest.mark.parametrize("last", LAST)
def test_the_interpreter_ends_in_time_with_open_iterators(last):
    script = processes.Script("-X", "faulthandler", "-c", HEAD + LAST[last] + "\nprint('last line')")
    try:
        if last != "sys.exit":
            script.wait_for("last line")
        out, err = script.process.communicate(timeout=15)
        assert (script.process.returncode, err) == (0, "")
        assert processes.wait_until(lambda: not script.left(), 5), script.left()
    finally:
        script.kill_left()


def test_an_exception_of_the_training_loop_ends_the_script_with_its_traceback():
    code = HEAD + "for batch in DataLoader(Rows(100), num_workers=2):\n    raise ValueError('of the loop')"
    status, out, err = processes.Script("-c", code).end(30)
    assert status == 1
    assert err.rstrip().endswith("ValueError: of the loop")


FORKS = {
    "a loader": ("loader = DataLoader(Rows(8), num_workers=1)", "assert len(list(loader)) == 8"),
    "a loader that has run": (
        "loader = DataLoader(Rows(8), num_workers=1); list(loader)",
        "assert len(list(loader)) == 8",
    ),
    "a live iterator": (
        "loader = DataLoader(Rows(8), num_workers=1); iterator = iter(loader); next(iterator)",
        "del iterator, loader",
    ),
    "a batch": (
        "batch = next(iter(DataLoader(Rows(8), num_workers=1)))",
        "assert batch.tolist() == [[0, 0]]; del batch",
    ),
    "persistent workers": (
        "loader = DataLoader(Rows(8), num_workers=1, persistent_workers=True); list(loader)",
        "del loader",
    ),
}


@pytest.mark.parametrize("made", FORKS)
def test_a_fork_of_main_disturbs_nothing(made):
    """The child can use what it has, and its end disturbs neither the workers nor the parent."""
    before, child = FORKS[made]
    code = f"""{HEAD}
import gc, signal
{before}
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    {child}
    gc.collect()
    sys.stdout.flush()
    sys.exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
if "iterator" in globals():
    assert len(list(iterator)) == 7
if "loader" in globals():
    assert len(list(loader)) == 8
if "batch" in globals():
    assert batch.tolist() == [[0, 0]]
"""
    processes.run("-c", code)


class Keeper(Rows):
    """A dataset or a sampler that holds the iterator of its own loader."""

    def __iter__(self):
        return iter(range(self.length))


class BatchKeeper(Keeper):
    def __iter__(self):
        return iter([[number] for number in range(self.length)])


class StreamKeeper(Stream):
    pass


KEEPERS = {
    "dataset": lambda **arguments: DataLoader(Keeper(40), **arguments),
    "iterable": lambda **arguments: DataLoader(StreamKeeper((40,)), **arguments),
    "sampler": lambda **arguments: DataLoader(Rows(40), sampler=Keeper(40), **arguments),
    "batch_sampler": lambda **arguments: DataLoader(Rows(40), batch_sampler=BatchKeeper(40), **arguments),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("part", KEEPERS)
def test_an_iterator_that_a_part_of_its_loader_holds_is_collected(part, num_workers):
    loader = KEEPERS[part](num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)
    keeper = getattr(loader, part if part != "iterable" else "dataset")
    assert isinstance(keeper, (Keeper, StreamKeeper))
    keeper.iterator, kept, begun = iterator, weakref.ref(keeper), set(processes.children())
    del loader, iterator, keeper
    assert kept() is not None
    gc.collect()
    assert kept() is None
    assert num_workers == 0 or gone(begun)


def test_batches_that_fill_the_shared_memory_raise_with_advice_for_python():
    loader = DataLoader(Items([torch.zeros(1 << 18)] * 40), num_workers=1, shared_memory_limit="8 MiB")
    advice = r"shared_memory_limit.*copy tensors that you keep \(`tensor.clone\(\)`; with NumPy `array.copy\(\)`\)$"
    with pytest.raises(RuntimeError, match=advice):
        list(loader)
    assert sum(len(batch.clone()) for batch in loader) == 40


class FailingKeeper:
    """A sampler that holds the iterator of its own loader, and raises an exception before the program has its second
    batch."""

    def __len__(self):
        return 2

    def __iter__(self):
        yield 0
        self.has_failed = True
        raise ValueError("no more")


def test_an_iterator_whose_sampler_has_raised_and_holds_it_is_collected():
    keeper = FailingKeeper()
    keeper.iterator, kept = iter(DataLoader(Rows(2), sampler=keeper, num_workers=1)), weakref.ref(keeper)
    next(keeper.iterator)
    assert keeper.has_failed
    del keeper
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("end", ["batches.close()", "batches.close_at_exit()"])
def test_user_code_that_runs_at_the_end_of_an_iterator_can_use_it(end):
    code = f"""{HEAD}
import faulthandler
import numpy
import tempfile
from loader import datasets
from loader._rust import _rust_loader
faulthandler.dump_traceback_later(20, exit=True)

def begin(_epoch):
    try:
        yield [0]
        yield [1]
    finally:
        print("the report is", batches.report())

with tempfile.NamedTemporaryFile(suffix=".npy") as file:
    numpy.save(file, numpy.zeros((2, 2)))
    file.flush()
    engine = _rust_loader.engine(datasets.Arrays(file.name), "{{}}", auto_collation=True, begin=begin, batches=2)
    batches = engine.iterate(0, lambda array: array)
    next(batches)
    {end}
"""
    assert processes.run("-c", code).strip() == "the report is None"


def test_a_program_may_terminate_the_workers_in_pytorch_s_private_list():
    batches = iter(DataLoader(Rows(20), num_workers=2))
    next(batches)
    workers = batches._workers
    for worker in workers:
        if worker.is_alive():
            worker.terminate()
            worker.join(10)
    assert not any(worker.is_alive() for worker in workers)


def test_the_private_list_does_not_keep_the_workers():
    batches = iter(DataLoader(Rows(20), num_workers=2))
    next(batches)
    workers = batches._workers
    del batches
    for worker in workers:
        worker.join(10)
        worker.terminate()
    assert not any(worker.is_alive() for worker in workers)


def test_there_are_no_workers_once_the_interpreter_has_removed_what_modules_define(monkeypatch):
    """`__del__` of Ultralytics' loader reads the workers then."""
    iterator = iter(DataLoader(Rows(10), num_workers=1))
    assert len(iterator._workers) == 1
    # The interpreter does it for each name of a module, at its end.
    monkeypatch.setattr(_iterator, "WorkerProcess", None)
    assert iterator._workers == []
