"""Loaders and iterators used from several threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch_datasets import Rows, Slow

from loader import DataLoader


def test_each_thread_with_a_loader_of_its_own():
    def numbers(_):
        return torch.cat(list(DataLoader(Rows(40), batch_size=3, num_workers=1)))[:, 0].tolist()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(numbers, range(3))) == [list(range(40))] * 3


def test_one_iterator_that_several_threads_share_gives_each_batch_once():
    iterator = iter(DataLoader(Rows(200), num_workers=2))

    def numbers(_):
        return [batch[0, 0].item() for batch in iterator]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(numbers, range(4)))
    assert sorted(sum(found, [])) == list(range(200))
    assert all(part == sorted(part) for part in found)


def test_an_iterator_made_in_one_thread_and_used_and_dropped_in_others():
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        iterator = [one.submit(lambda: iter(DataLoader(Rows(30), num_workers=1))).result()]
        assert next(iterator[0])[0, 0] == 0
        assert two.submit(lambda: next(iterator[0])).result()[0, 0] == 1
        two.submit(iterator.clear).result()


def test_other_threads_run_while_one_waits():
    """The wait for a batch releases the interpreter's lock."""
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    iterator = iter(DataLoader(Slow(2, 1.0, (1,)), num_workers=1))
    next(iterator)
    thread = threading.Thread(target=count)
    thread.start()
    next(iterator)
    stop.set()
    thread.join()
    assert counted[0] > 100


class Fails(Rows):
    """Each sample raises an exception, and notes it."""

    def __init__(self, length):
        super().__init__(length)
        self.raised = []

    def __getitem__(self, index):
        self.raised.append(ValueError(index))
        raise self.raised[-1]


def test_loaders_without_workers_raise_their_own_exceptions_in_several_threads():
    stop = threading.Event()

    def exceptions(dataset):
        loader = DataLoader(dataset, batch_size=None)
        iterator, found = iter(loader), []
        # The iterator releases the interpreter's lock only if another thread uses it too.
        asks = threading.Thread(target=lambda: [loader.state_dict() for _ in iter(stop.is_set, True)])
        asks.start()
        while len(found) < dataset.length:
            try:
                next(iterator)
            except ValueError as error:
                found.append(error)
        return found

    datasets = [Fails(300), Fails(300)]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(exceptions, dataset) for dataset in datasets]
        found = [future.result() for future in futures if not future.exception()]
        stop.set()
    assert [list(map(id, each)) for each in found] == [list(map(id, dataset.raised)) for dataset in datasets]


def test_a_batch_can_be_released_in_another_thread():
    batches = list(DataLoader(Rows(50), num_workers=1))
    thread = threading.Thread(target=batches.clear)
    thread.start()
    thread.join()
    assert not batches
