"""Writes blend.json: Megatron-LM's `build_blending_indices` (megatron/core/datasets/helpers.cpp) for some weights.

    python3 blend.py > blend.json
"""

import json


def blend(weights, size):
    total = sum(weights)
    weights = [weight / total for weight in weights]
    current = [0] * len(weights)
    datasets, samples = [], []
    for sample in range(size):
        scale = max(float(sample), 1.0)
        most, error = 0, weights[0] * scale - current[0]
        for dataset in range(1, len(weights)):
            other = weights[dataset] * scale - current[dataset]
            if other > error:
                most, error = dataset, other
        datasets.append(most)
        samples.append(current[most])
        current[most] += 1
    return {"datasets": datasets, "samples": samples}


CASES = [
    ([1, 1], 8),
    ([3, 1], 40),
    ([0.7, 0.2, 0.1], 100),
    ([0.3, 0.3, 0.3, 0.1], 100),
    ([5, 100, 17, 1, 1, 60, 3], 200),
    ([1 / 3, 1 / 7, 0.0314], 100),
]
print(json.dumps([{"weights": weights, **blend(weights, size)} for weights, size in CASES], separators=(",", ":")))
