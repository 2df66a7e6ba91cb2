#!/usr/bin/env python3
"""The workloads that read tar archives on webdataset, with its own loader and batches that the workers make, as its
documentation recommends."""

import torch
import webdataset

from pytorch import augmentation, decoder
from workloads import Peer, files, image_rates


class WebDataset(Peer):
    name = "webdataset"

    def array_of(self, batch):
        return batch.numpy()


def numbers(data):
    return torch.frombuffer(data, dtype=torch.float32)


def as_is(label):
    return label


def tar(peer, options):
    samples = webdataset.WebDataset(options.file, shardshuffle=False).decode().to_tuple("f32", "cls")
    batches = samples.map_tuple(numbers, as_is).batched(options.batch_size)
    files(peer, options, webdataset.WebLoader(batches, batch_size=None, num_workers=options.workers))


def tar_images(peer, options):
    """Decodes and transforms images with torchvision, which is faster than webdataset's default, Pillow."""
    decode, transform = decoder(), augmentation()

    def load(data):
        return transform(decode(torch.frombuffer(data, dtype=torch.uint8)))

    samples = webdataset.WebDataset(options.file, shardshuffle=False).to_tuple("jpg", "cls")
    batches = samples.map_tuple(load, int).batched(options.batch_size)
    image_rates(peer, options, webdataset.WebLoader(batches, batch_size=None, num_workers=options.workers))


WebDataset.further_workloads = {"tar": tar, "tar-images": tar_images}


if __name__ == "__main__":
    WebDataset().main()
