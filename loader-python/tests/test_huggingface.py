"""Datasets of Hugging Face, in memory."""

import itertools
import os
import signal

import processes
import pytest
import torch
import torch.utils.data
from torch_datasets import same

from loader import DataLoader

hf = pytest.importorskip("datasets", reason="SKIPPED: Hugging Face's datasets is not installed")

SAMPLES, SHARDS = 48, 4
# A progress bar that it imports keeps a lock in shared memory.
hf.Dataset.from_dict({"number": [0]}).with_format("torch")[0]
ROWS = {
    "number": list(range(SAMPLES)),
    "text": [f"row {number}" for number in range(SAMPLES)],
    "vector": [[number / 2, -number] for number in range(SAMPLES)],
}


def rows():
    return hf.Dataset.from_dict(ROWS)


def with_double(row):
    return {**row, "double": 2 * row["number"]}


MAP_STYLE = {
    "plain": rows,
    "torch": lambda: rows().with_format("torch"),
    "numpy": lambda: rows().with_format("numpy"),
    "shuffled and selected": lambda: rows().shuffle(seed=3).select(range(5, 40)).with_format("torch"),
    "transformed": lambda: rows().with_transform(doubled),
}
STREAMS = {
    "plain": lambda: rows().to_iterable_dataset(num_shards=SHARDS),
    "torch": lambda: rows().to_iterable_dataset(num_shards=SHARDS).with_format("torch"),
    "mapped": lambda: rows().to_iterable_dataset(num_shards=SHARDS).map(with_double).with_format("torch"),
    "filtered": lambda: rows().to_iterable_dataset(num_shards=SHARDS).filter(is_no_multiple),
    "shuffled": lambda: rows().to_iterable_dataset(num_shards=SHARDS).shuffle(seed=3, buffer_size=8),
    "shuffled and mapped": lambda: STREAMS["shuffled"]().map(with_double).with_format("torch"),
}


def doubled(batch):
    return {"double": [2 * number for number in batch["number"]]}


def is_no_multiple(row):
    return row["number"] % 7 != 0


def numbers(batches):
    return [batch["number"].tolist() for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", MAP_STYLE)
def test_map_style_batches_equal_pytorchs(kind, num_workers):
    def of_epoch(loader_class):
        generator = torch.Generator().manual_seed(3)
        return list(
            loader_class(MAP_STYLE[kind](), batch_size=5, shuffle=True, num_workers=num_workers, generator=generator)
        )

    same(of_epoch(DataLoader), of_epoch(torch.utils.data.DataLoader))


def test_a_killed_worker_of_a_map_style_dataset_changes_nothing():
    found = []
    with pytest.warns(RuntimeWarning, match="worker"):
        for batch in DataLoader(MAP_STYLE["torch"](), batch_size=1, num_workers=2):
            found.append(batch["number"].item())
            if len(found) == 5:
                for pid in processes.workers():
                    os.kill(pid, signal.SIGKILL)
    assert found == list(range(SAMPLES))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", STREAMS)
def test_batches_of_a_stream_equal_pytorchs(kind, num_workers):
    def of_epoch(loader_class):
        return list(loader_class(STREAMS[kind](), batch_size=5, num_workers=num_workers))

    same(of_epoch(DataLoader), of_epoch(torch.utils.data.DataLoader))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("taken", [1, 7])
def test_a_stream_resumes_in_mid_epoch(kind, num_workers, taken):
    def make():
        return DataLoader(STREAMS[kind](), batch_size=5, num_workers=num_workers)

    whole = numbers(make())
    found = numbers(itertools.islice(first := make(), taken))
    second = make()
    second.load_state_dict(first.state_dict())
    assert found + numbers(second) == whole
    # The next epoch is whole.
    assert numbers(second) == whole


class Wrapped(torch.utils.data.IterableDataset):
    """A dataset that passes the state of a stream of Hugging Face on."""

    def __init__(self):
        self.parts = {"stream": STREAMS["plain"]()}

    def __iter__(self):
        yield from self.parts["stream"]

    def state_dict(self):
        return self.parts["stream"].state_dict()

    def load_state_dict(self, state):
        self.parts["stream"].load_state_dict(state)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}])
@pytest.mark.parametrize("kind", ["plain", "mapped", "in another dataset"])
def test_epochs_after_a_state_are_whole(kind, workers):
    """States from the second epoch: before its first batch, within it, after its last batch, and from its end."""

    def make():
        return DataLoader(Wrapped() if kind == "in another dataset" else STREAMS[kind](), batch_size=6, **workers)

    loader = make()
    whole = numbers(loader)
    for place in (0, 1, 8, 9):
        iterator = iter(loader)
        taken = len(list(itertools.islice(iterator, place)))
        state = loader.state_dict()
        other = make()
        other.load_state_dict(state)
        rest = whole[taken:] if place <= 8 else whole
        assert [numbers(other) for _ in range(3)] == [rest, whole, whole], f"after {place} batches"


@pytest.mark.parametrize("kind", ["torch", "shuffled"])
def test_an_epoch_with_a_killed_persistent_worker_and_the_next_are_whole(kind):
    loader = DataLoader(STREAMS[kind](), batch_size=2, num_workers=2, persistent_workers=True)
    whole, found = numbers(loader), []
    with pytest.warns(RuntimeWarning, match="worker"):
        for batch in loader:
            found.append(batch["number"].tolist())
            if len(found) == 4:
                for pid in processes.workers():
                    os.kill(pid, signal.SIGKILL)
    assert [found, numbers(loader)] == [whole, whole]


@pytest.mark.parametrize("killed", [False, True])
def test_set_epoch_reaches_persistent_workers(killed):
    def of_epochs(loader_class):
        stream = rows().to_iterable_dataset(num_shards=SHARDS).shuffle(seed=3, buffer_size=1)
        loader = loader_class(stream, batch_size=5, num_workers=2, persistent_workers=True)
        found = []
        for epoch in range(3):
            stream.set_epoch(epoch)
            found.append(numbers(loader))
            if killed and loader_class is DataLoader:
                for pid in processes.workers():
                    os.kill(pid, signal.SIGKILL)
        return found

    if killed:
        with pytest.warns(RuntimeWarning, match="worker"):
            found = of_epochs(DataLoader)
    else:
        found = of_epochs(DataLoader)
    assert found == of_epochs(torch.utils.data.DataLoader)
    assert any(epoch != found[0] for epoch in found)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_of_split_dataset_by_node_load_each_row_once(num_workers):
    from datasets.distributed import split_dataset_by_node

    for dataset in (rows().with_format("torch"), rows().to_iterable_dataset(num_shards=SHARDS)):
        of_ranks = [
            numbers(DataLoader(split_dataset_by_node(dataset, rank, 2), batch_size=5, num_workers=num_workers))
            for rank in range(2)
        ]
        assert sorted(sum(of_ranks[0] + of_ranks[1], [])) == list(range(SAMPLES))
