"""Writes torch-order.json: orders of the samplers and splits of PyTorch, for loader-core to be checked against.

    pip install torch==2.15.0 && python torch_order.py > torch-order.json
"""

import json
import warnings

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)

SEEDS = [0, 1, 7, 42, 2**32 + 5, 2**64 - 1]
WEIGHTS = {
    "pytorch's example": [0.1, 0.9, 0.4, 0.7, 3.0, 0.6],
    "pytorch's other example": [0.9, 0.4, 0.05, 0.2, 0.3, 0.1],
    "zeros": [0.0, 2.0, 0.0, 1.0, 5.0, 0.0],
    "one": [3.0],
    "equal": [1.0] * 17,
    "many": [((index * 7919) % 1000) / 1000.0 for index in range(1, 2001)],
    "far apart": [10.0 ** (index - 20) for index in range(40)],
}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def checksum(indices):
    result = 0
    for index in indices:
        result = (result * 1_000_003 + index + 1) % 2**64
    return str(result)


def times(sampler, count):
    """What the sampler gives, iterated over again and again."""
    found = [list(sampler) for _ in range(count)]
    return found if len(found[0]) <= 100 else [checksum(indices) for indices in found]


def words(seed):
    drawn = generator(seed)
    return {
        "random64": [torch.empty((), dtype=torch.int64).random_(generator=drawn).item() for _ in range(400)],
        "uniform": torch.rand(3, dtype=torch.float64, generator=drawn).tolist(),
        "after": torch.randint(1000, (3,), generator=drawn).tolist(),
    }


def permutations(seed):
    short = {str(length): torch.randperm(length, generator=generator(seed)).tolist() for length in (0, 1, 2, 3, 10, 20)}
    long = {str(length): checksum(torch.randperm(length, generator=generator(seed)).tolist()) for length in (1000, 100_000)}
    return {"short": short, "checksums": long}


def randint(seed):
    bounds = (1, 20, 2**28 - 1, 2**28, 2**32 - 1, 2**32, 2**40)
    return {str(bound): torch.randint(bound, (5,), generator=generator(seed)).tolist() for bound in bounds}


def random(seed):
    cases = [
        {"len": length, "replacement": replacement, "num_samples": count}
        for length, replacement, count in (
            (1, False, 1),
            (2, False, 2),
            (20, False, 20),
            (20, False, 45),
            (20, False, 40),
            (20, False, 7),
            (20, True, 45),
            (20, True, 32),
            (20, True, 1),
            (2**28, True, 5),
        )
    ]
    for case in cases:
        sampler = RandomSampler(
            range(case["len"]), case["replacement"], case["num_samples"], generator(seed)
        )
        case["epochs"] = times(sampler, 4)
    return cases


def subset(seed):
    cases = [{"indices": list(given)} for given in ((3, 1, 4, 15, 9, 2, 6), (5,), (8, 8, 1))]
    for case in cases:
        case["epochs"] = times(SubsetRandomSampler(case["indices"], generator(seed)), 3)
    return cases


def weighted(seed):
    cases = []
    for name, weights in WEIGHTS.items():
        positive = sum(weight > 0 for weight in weights)
        for replacement, counts in ((True, (1, 2, 12)), (False, sorted({1, min(5, positive), positive}))):
            for count in counts:
                case = {"weights": name, "num_samples": count, "replacement": replacement}
                sampler = WeightedRandomSampler(weights, count, replacement, generator(seed))
                cases.append({**case, "epochs": times(sampler, 3)})
    return cases


def shuffled(seed):
    """Base seeds and batches of a loader with shuffle=True, with workers and without."""
    cases = []
    for length, batch_size, drop_last, workers, persistent in (
        (1, 1, False, 0, False),
        (2, 1, False, 0, False),
        (10, 10, False, 0, False),
        (20, 6, False, 0, False),
        (20, 6, True, 0, False),
        (20, 5, False, 2, False),
        (20, 6, False, 1, True),
        (20, 6, True, 2, True),
    ):
        loader = DataLoader(
            range(length),
            batch_size=batch_size,
            shuffle=True,
            drop_last=drop_last,
            num_workers=workers,
            persistent_workers=persistent,
            collate_fn=list,
            generator=generator(seed),
        )
        case = {"len": length, "batch_size": batch_size, "drop_last": drop_last, "persistent_workers": persistent}
        case |= {"base_seeds": [], "epochs": []}
        for _ in range(4):
            iterator = iter(loader)
            case["base_seeds"].append(iterator._base_seed)
            case["epochs"].append([list(batch) for batch in iterator])
        cases.append(case)
    return cases


def distributed(seed):
    cases = []
    for length, world_size in ((23, 4), (20, 4), (10, 3), (2, 5), (1, 1), (9, 4)):
        for drop_last in (False, True):
            for shuffle in (False, True):
                for epoch in (0, 1, 5):
                    ranks = []
                    for rank in range(world_size):
                        sampler = DistributedSampler(
                            range(length), world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
                        )
                        sampler.set_epoch(epoch)
                        ranks.append(list(sampler))
                    cases.append(
                        {
                            "len": length,
                            "world_size": world_size,
                            "drop_last": drop_last,
                            "shuffle": shuffle,
                            "epoch": epoch,
                            "ranks": ranks,
                        }
                    )
    return cases


def splits(seed):
    by_counts = [
        {"counts": counts, "parts": [list(part.indices) for part in random_split(range(sum(counts)), counts, generator(seed))]}
        for counts in ([12, 7, 4], [3, 7], [0, 5, 0], [20])
    ]
    by_fractions = [
        {
            "len": length,
            "fractions": fractions,
            "parts": [list(part.indices) for part in random_split(range(length), fractions, generator(seed))],
        }
        for length, fractions in (
            (106, [0.1, 0.2, 0.3, 0.4]),
            (30, [0.3, 0.3, 0.4]),
            (5, [0.5, 0.5]),
            (7, [0.33, 0.67]),
            (4, [0.25, 0.75]),
            (3, [0.25, 0.25, 0.25, 0.25]),
            (9, [1.0]),
        )
    ]
    return {"by_counts": by_counts, "by_fractions": by_fractions}


def main():
    warnings.simplefilter("ignore")
    parts = {
        "words": words,
        "permutations": permutations,
        "randint": randint,
        "random": random,
        "subset": subset,
        "weighted": weighted,
        "shuffled": shuffled,
        "distributed": lambda seed: distributed(seed) if seed < 2**63 else [],
        "splits": splits,
    }
    result = {
        "torch": torch.__version__.split("+")[0],
        "weights": WEIGHTS,
        "seeds": [{"seed": seed, **{name: part(seed) for name, part in parts.items()}} for seed in SEEDS],
    }
    print(json.dumps(result, separators=(",", ":")))


if __name__ == "__main__":
    main()
