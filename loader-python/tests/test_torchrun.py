"""Ranks that torchrun starts. This file is also the program of a rank."""

import json
import os
import sys
import warnings

import processes
import pytest
import torch
import torch.distributed
import torch.utils.data
from torch_datasets import Rows
from torch.utils.data import DistributedSampler, IterableDataset, get_worker_info

from loader import DataLoader

SAMPLES, RANKS = 101, 2
CONFIG = """
[dataset]
kind = "csv"
path = "{}"

[loader]
batch_size = 4
shuffle = true
seed = 3
num_workers = 2
launcher = "auto"
"""


class OfRank(IterableDataset):
    """The share of a rank, which each worker finds in the environment, as WebDataset does."""

    def __iter__(self):
        rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        info = get_worker_info()
        yield from range(rank * info.num_workers + info.id, SAMPLES, ranks * info.num_workers)


def shuffled(loader_class, rank, **arguments):
    """Returns the numbers of two epochs of a rank."""
    sampler = DistributedSampler(Rows(SAMPLES), RANKS, rank, shuffle=True, seed=5)
    loader = loader_class(Rows(SAMPLES), batch_size=4, sampler=sampler, **arguments)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        found.append([batch[:, 0].tolist() for batch in loader])
    return found


def resumed(rank):
    """Returns the numbers of an epoch that was left after some batches, other ones on each rank, and continued."""

    def make():
        sampler = DistributedSampler(Rows(SAMPLES), shuffle=True, seed=5)
        return DataLoader(Rows(SAMPLES), batch_size=4, sampler=sampler, num_workers=2)

    found = []
    for batch in (loader := make()):
        found.append(batch[:, 0].tolist())
        if len(found) == 3 + rank:
            break
    second = make()
    second.load_state_dict(loader.state_dict())
    return found + [batch[:, 0].tolist() for batch in second]


def main():
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {
        "in main": shuffled(DataLoader, rank),
        "workers": shuffled(DataLoader, rank, num_workers=2),
        "persistent workers": shuffled(DataLoader, rank, num_workers=2, persistent_workers=True),
        "resumed": resumed(rank),
        "iterable": [batch.tolist() for batch in DataLoader(OfRank(), batch_size=4, num_workers=2)],
        "rust": rust(rank),
    }
    of_ranks = [None] * RANKS
    torch.distributed.all_gather_object(of_ranks, found)
    torch.distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(of_ranks))


def rust(rank):
    """Returns the numbers that a loader in the engine's order gives: the rank from the launcher, from arguments, and
    from the launcher because a config says so."""
    import loader

    # The machine may have fewer CPUs than the ranks have workers.
    warnings.filterwarnings("ignore", "num_workers is 2", RuntimeWarning)
    rows = loader.Csv(sys.argv[1])
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 2}
    launched = loader.RustLoader(rows, launcher="auto", **options)
    given = loader.RustLoader(rows, rank=rank, world_size=RANKS, **options)
    configured = loader.from_config(sys.argv[2])
    found = [[batch["number"].tolist() for batch in made] for made in (launched, given, configured)]
    assert found[0] == found[1] == found[2]
    assert len(launched) == len(found[0])
    return found[0]


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    config = path.with_name("run.toml")
    config.write_text(CONFIG.format(path))
    path.write_text("number\n" + "".join(f"{number}\n" for number in range(SAMPLES)))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]
    return json.loads(
        processes.run(*torchrun, __file__, path, config, PYTHONWARNINGS="error::RuntimeWarning").splitlines()[-1]
    )


@pytest.mark.parametrize("how", ["in main", "workers", "persistent workers"])
def test_ranks_with_a_distributed_sampler_load_what_pytorchs_loader_loads(of_ranks, how):
    for rank in range(RANKS):
        assert of_ranks[rank][how] == shuffled(torch.utils.data.DataLoader, rank)


def numbers(batches):
    return sorted(number for batch in batches for number in batch)


def test_the_ranks_together_load_the_dataset(of_ranks):
    one, other = (found["workers"][0] for found in of_ranks)
    # DistributedSampler repeats a sample so that both ranks load 51.
    assert set(numbers(one + other)) == set(range(SAMPLES))
    assert len(numbers(one)) == len(numbers(other)) == 51


def test_a_rank_resumes_its_share(of_ranks):
    for found in of_ranks:
        assert found["resumed"] == found["workers"][0]


def test_workers_of_an_iterable_dataset_find_the_rank_in_the_environment(of_ranks):
    assert numbers(of_ranks[0]["iterable"] + of_ranks[1]["iterable"]) == list(range(SAMPLES))


def test_a_rust_loader_takes_its_rank_from_the_launcher(of_ranks):
    one, other = (numbers(found["rust"]) for found in of_ranks)
    assert set(one + other) == set(range(SAMPLES))
    assert len(one) == len(other) == 51


if __name__ == "__main__":
    main()
