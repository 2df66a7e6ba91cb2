"""Pickles of what main and workers send each other: the dataset, keys and batches."""
