#!/usr/bin/env python3
"""The workload that reads a tar archive on webdataset, with its own loader and batches that the workers make, as its
documentation recommends."""

import torch
import webdataset

from workloads import Peer, files


class WebDataset(Peer):
    name = "webdataset"


def numbers(data):
    return torch.frombuffer(data, dtype=torch.float32)


def as_is(label):
    return label


def tar(peer, options):
    samples = webdataset.WebDataset(options.file, shardshuffle=False).decode().to_tuple("f32", "cls")
    batches = samples.map_tuple(numbers, as_is).batched(options.batch_size)
    files(peer, options, webdataset.WebLoader(batches, batch_size=None, num_workers=options.workers))


WebDataset.further_workloads = {"tar": tar}


if __name__ == "__main__":
    WebDataset().main()
