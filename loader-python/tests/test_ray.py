"""Actors of a local Ray cluster that load, each with workers of its own. This file is also the program of the
driver."""

import json
import os
from pathlib import Path

import processes
import pytest
import torch.utils.data
from torch_datasets import Slow
from torch.utils.data import DistributedSampler

from loader import DataLoader

EXAMPLE = Path(__file__).parents[1] / "examples/ray_disaggregated.py"
SAMPLES, RANKS = 80, 2
#: Number of batches that rank 1 gives before it is killed.
KILLED_AFTER = 4


def dataset_of(seconds):
    return Slow(SAMPLES, seconds, tuple(range(SAMPLES)))


def loader_of(rank, loader_class=DataLoader, **options):
    dataset = dataset_of(0.01)
    sampler = DistributedSampler(dataset, RANKS, rank, shuffle=True, seed=5)
    return loader_class(dataset, batch_size=4, sampler=sampler, num_workers=2, **options)


class Rank:
    """Loads the share of a rank."""

    def __init__(self, rank, state):
        self.loader = loader_of(rank, digest=True)
        if state is not None:
            self.loader.load_state_dict(state)
        self.batches = iter(self.loader)

    def next(self):
        """Returns the next batch with the state and the digest after it, and `None` at the end."""
        batch = next(self.batches, None)
        return None if batch is None else (batch[:, 0].tolist(), self.loader.state_dict(), self.batches.digest())

    def pids(self):
        return [os.getpid(), *(worker.pid for worker in self.batches._workers)]


def is_running(pid):
    return any(process.pid == pid and process.state != "Z" for process in processes.all_processes())


def main():
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(num_cpus=1)(Rank)
    ranks = [remote.remote(rank, None) for rank in range(RANKS)]
    found, states, digests = [[] for _ in ranks], [None] * RANKS, [None] * RANKS
    left = None
    while open_ranks := [rank for rank in range(RANKS) if ranks[rank] is not None]:
        batches = ray.get([ranks[rank].next.remote() for rank in open_ranks])
        for rank, batch in zip(open_ranks, batches):
            if batch is None:
                ranks[rank] = None
                continue
            numbers, states[rank], digests[rank] = batch
            found[rank].append(numbers)
            if left is None and rank == 1 and len(found[rank]) == KILLED_AFTER:
                pids = ray.get(ranks[rank].pids.remote())
                # Not awaited: the batch is lost with the actor.
                ranks[rank].next.remote()
                ray.kill(ranks[rank])
                processes.wait_until(lambda: not any(map(is_running, pids)), 10)
                left = [pid for pid in pids if is_running(pid)]
                ranks[rank] = remote.remote(rank, states[rank])
    ray.shutdown()
    print(json.dumps({"found": found, "left": left, "killed": len(pids), "digests": digests}))


def test_a_killed_actor_is_replaced_by_one_that_resumes():
    pytest.importorskip("ray", reason="SKIPPED: ray is not installed")
    out = json.loads(processes.run(__file__, seconds=100).splitlines()[-1])
    assert out["killed"] == 3 and out["left"] == []
    for rank in range(RANKS):
        expected = loader_of(rank, torch.utils.data.DataLoader)
        assert out["found"][rank] == [batch[:, 0].tolist() for batch in expected]
    assert sorted(sum(out["found"][0] + out["found"][1], [])) == list(range(SAMPLES))
    # The sum of the digests of both ranks is that of the whole dataset, each sample once.
    whole = iter(DataLoader(dataset_of(0), batch_size=7, digest=True))
    assert sum(len(batch) for batch in whole) == SAMPLES
    total = sum(int(digest, 16) for digest, _ in out["digests"]) % (1 << 128)
    assert (f"{total:032x}", sum(samples for _, samples in out["digests"])) == whole.digest()


def test_the_example_passes_each_batch_to_the_trainers_once():
    pytest.importorskip("ray", reason="SKIPPED: ray is not installed")
    assert "each once" in processes.run(EXAMPLE, seconds=100)


if __name__ == "__main__":
    main()
