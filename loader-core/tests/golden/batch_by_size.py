"""Writes batch_by_size.json: fairseq's `batch_by_size` (fairseq/data/data_utils_fast.pyx) over sorted samples.

    python3 batch_by_size.py > batch_by_size.json
"""

import json
import random


def is_full(samples, tokens, max_tokens, max_samples):
    return samples > 0 and (samples == max_samples or tokens > max_tokens)


def batch_by_size(lens, max_tokens, max_samples, multiple_of):
    batches, batch, batch_lens, longest = [], [], [], 0
    for index in sorted(range(len(lens)), key=lambda index: lens[index]):
        batch_lens.append(lens[index])
        longest = max(longest, lens[index])
        tokens = (len(batch) + 1) * longest
        if is_full(len(batch), tokens, max_tokens, max_samples):
            keep = max(multiple_of * (len(batch) // multiple_of), len(batch) % multiple_of)
            batches.append(batch[:keep])
            batch, batch_lens = batch[keep:], batch_lens[keep:]
            longest = max(batch_lens) if batch_lens else 0
        batch.append(index)
    if batch:
        batches.append(batch)
    return batches


random.seed(1)
cases = []
for samples, max_tokens, max_samples, multiple_of in [
    (1, 40, 9, 1), (30, 64, 100, 1), (50, 200, 8, 1), (50, 300, 100, 4), (60, 120, 7, 3), (40, 40, 100, 8),
]:
    lens = [random.randint(0, 40) for _ in range(samples)]
    options = {"max_tokens": max_tokens, "max_samples": max_samples, "multiple_of": multiple_of}
    cases.append({"lens": lens, **options, "batches": batch_by_size(lens, max_tokens, max_samples, multiple_of)})
print(json.dumps(cases, separators=(",", ":")))
