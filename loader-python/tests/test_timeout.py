"""The argument `timeout`."""

import time

import pytest
from torch_datasets import Rows, Slow

from loader import DataLoader


def test_a_batch_that_is_late_raises_pytorch_s_exception_in_time():
    iterator = iter(DataLoader(Slow(6, 1000, (2,)), num_workers=1, timeout=2, prefetch_factor=1))
    assert [next(iterator)[0, 0].item() for _ in range(2)] == [0, 1]
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="^DataLoader timed out after 2 seconds"):
        next(iterator)
    assert 1.5 < time.monotonic() - started < 6
    started = time.monotonic()
    del iterator
    # The worker has five seconds for its sample, and is killed then.
    assert time.monotonic() - started < 8


def takes_long(_worker):
    time.sleep(3)


def test_the_start_of_workers_is_not_a_late_batch():
    """A worker imports the modules of the dataset, which may take longer than batches may."""
    assert len(list(DataLoader(Rows(4), num_workers=2, timeout=1, worker_init_fn=takes_long))) == 4


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_without_a_timeout_a_wait_may_take_long(persistent_workers):
    loader = DataLoader(Slow(3, 6, (1,)), num_workers=1, persistent_workers=persistent_workers)
    assert len(list(loader)) == 3
