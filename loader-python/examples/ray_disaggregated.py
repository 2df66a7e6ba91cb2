"""Loads batches in Ray actors on other machines than the training.

Loader actors pass the batches to trainer actors through Ray's object store.

    pip install ./loader-python ray torch cloudpickle
    python loader-python/examples/ray_disaggregated.py

Each trainer has a share of the dataset and two loader actors. Loader actor k returns the batches k, k + 2, k + 4, ... of
the share, and the trainer asks the two in turn, so it gets the batches in order. Each batch comes with the state of its
loader. If a loader actor dies, the trainer makes another one with the last state that it has received. A checkpoint of a
trainer contains these states too.

The script kills a loader actor and a trainer in the middle of the epoch. The batches and losses are those of one process,
number for number.

On a cluster, give the nodes resources, such as `ray start --resources '{"loading": 8}'`, and the loader actors
`options(resources={"loading": 1})`.
"""

import collections
import itertools

import ray
import torch
from loader import DataLoader
from torch.utils.data import BatchSampler, Dataset, DistributedSampler

SAMPLES, BATCH_SIZE, TRAINERS, LOADERS = 480, 10, 2, 2
AHEAD = 2  # batches that each loader has been asked for before the trainer needs them
CHECKPOINT_AT = 8  # steps


class Images(Dataset):
    """Images of noise, each with its own seed, and labels."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(index)), index % 10


class Part:
    """Batches `first`, `first + step`, ... of a batch sampler."""

    def __init__(self, batches, first, step):
        self.batches, self.first, self.step = batches, first, step

    def __iter__(self):
        return itertools.islice(self.batches, self.first, None, self.step)

    def __len__(self):
        return len(range(self.first, len(self.batches), self.step))


def batches_of(rank):
    sampler = DistributedSampler(Images(), TRAINERS, rank, shuffle=True, seed=7)
    return BatchSampler(sampler, BATCH_SIZE, drop_last=True)


class Model:
    def __init__(self):
        torch.manual_seed(1)
        torch.set_num_threads(1)  # as in an actor, so that sums have the same order
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 10))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def step(self, images, labels):
        loss = torch.nn.functional.cross_entropy(self.net(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@ray.remote(num_cpus=1)
class Loader:
    """Loads a part of the batches of a trainer, with worker processes."""

    def __init__(self, rank, number, state):
        self.loader = DataLoader(Images(), batch_sampler=Part(batches_of(rank), number, LOADERS), num_workers=1)
        if state is not None:
            self.loader.load_state_dict(state)
        self.batches = iter(self.loader)

    def next(self):
        """Returns the next batch as arrays, which Ray keeps in its object store, and the state after it."""
        batch = next(self.batches, None)
        return None if batch is None else ([tensor.numpy() for tensor in batch], self.loader.state_dict())


class Batches:
    """The batches of a trainer in order, from loaders that are replaced when they die."""

    def __init__(self, rank, step, states):
        self.rank, self.step, self.states = rank, step, states
        self.asked = [collections.deque() for _ in range(LOADERS)]
        self.loaders = [None] * LOADERS
        for number in range(LOADERS):
            self.start(number)

    def start(self, number):
        self.loaders[number] = Loader.remote(self.rank, number, self.states[number])
        self.asked[number].clear()

    def next(self):
        number = self.step % LOADERS
        while True:
            while len(self.asked[number]) < AHEAD:
                self.asked[number].append(self.loaders[number].next.remote())
            try:
                given = ray.get(self.asked[number].popleft())
                break
            except ray.exceptions.RayActorError:
                self.start(number)
        if given is None:
            return None
        arrays, self.states[number] = given
        self.step += 1
        # Arrays of the object store are read-only, so this copies, as a move to a GPU does.
        return [torch.tensor(array) for array in arrays]


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rank, checkpoint=None):
        self.model = Model()
        step, states = 0, [None] * LOADERS
        if checkpoint is not None:
            step, states, weights = checkpoint
            self.model.net.load_state_dict(weights)
        self.batches = Batches(rank, step, states)

    def train(self, steps):
        """Trains for at most `steps` steps. Returns the indices and the loss of each."""
        done = []
        while len(done) < steps and (batch := self.batches.next()) is not None:
            indices, images, labels = batch
            done.append((indices.tolist(), self.model.step(images, labels)))
        return done

    def checkpoint(self):
        return self.batches.step, self.batches.states, self.model.net.state_dict()

    def loaders(self):
        return self.batches.loaders


def in_one_process(rank):
    model = Model()
    loader = DataLoader(Images(), batch_sampler=batches_of(rank))
    return [(indices.tolist(), model.step(images, labels)) for indices, images, labels in loader]


def main():
    ray.init(num_cpus=TRAINERS * LOADERS, include_dashboard=False, log_to_driver=False)
    trainers = [Trainer.remote(rank) for rank in range(TRAINERS)]
    done = ray.get([trainer.train.remote(CHECKPOINT_AT) for trainer in trainers])

    # A loader of trainer 0 dies.
    ray.kill(ray.get(trainers[0].loaders.remote())[1])
    # Trainer 1 dies after it has trained beyond its checkpoint. Its loaders end with it.
    checkpoint = ray.get(trainers[1].checkpoint.remote())
    ray.get(trainers[1].train.remote(3))
    ray.kill(trainers[1])
    trainers[1] = Trainer.remote(1, checkpoint)

    rest = ray.get([trainer.train.remote(SAMPLES) for trainer in trainers])
    ray.shutdown()
    for rank in range(TRAINERS):
        assert done[rank] + rest[rank] == in_one_process(rank), f"trainer {rank} has other batches or losses"
    indices = sorted(index for rank in range(TRAINERS) for batch, _ in done[rank] + rest[rank] for index in batch)
    assert indices == list(range(SAMPLES)), "a sample is missing, or was loaded twice"
    print(f"{SAMPLES} samples, each once, by {TRAINERS} trainers with {LOADERS} loaders each; same losses as in one process")


if __name__ == "__main__":
    main()
