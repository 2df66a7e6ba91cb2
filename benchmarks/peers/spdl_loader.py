#!/usr/bin/env python3
"""The workloads on Meta's SPDL, with its `PipelineBuilder` and threads.

The source yields the indices of whole batches, and each of `workers` threads makes one batch at a time, as in SPDL's
image examples. Alternative considered: a stage that loads single samples. Rejected because each sample would then pass
through the queues. Batches keep their order (`output_order="input"`). The output queue is the default one:
`use_thread_output_queue` was no faster in our measurements, takes a thread from the work, and makes it take three
seconds to leave an epoch early. FFmpeg (`spdl.io`) decodes, crops, resizes and mirrors images directly into the memory
of the batch, as SPDL's guides recommend.
"""

import random

import numpy
from spdl.pipeline import PipelineBuilder
from spdl.source import DistributedDeterministicSampler, DistributedRandomSampler

from workloads import IMAGE, MEAN, STD, ImageFiles, NotApplicable, Peer, random_crop

SINK_BUFFER = 3  # SPDL's default


class Spdl(Peer):
    name = "spdl"

    def open(self, dataset, options, shuffle):
        if options.workers == 0:
            raise NotApplicable("a pipeline always has threads")
        make_batch = ImageBatches(dataset) if isinstance(dataset, ImageFiles) else Batches(dataset)
        return Loader(dataset, make_batch, options, shuffle)

    def close(self, iterator):
        iterator.close()


class Loader:
    def __init__(self, dataset, make_batch, options, shuffle):
        self.make_batch, self.options = make_batch, options
        sampler = DistributedRandomSampler if shuffle else DistributedDeterministicSampler
        self.sampler = sampler(len(dataset), rank=0, world_size=1)
        self.shuffle = shuffle
        self.epoch = 0

    def indices(self):
        batch = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.options.batch_size:
                yield batch
                batch = []

    def __iter__(self):
        if self.shuffle:
            self.epoch += 1
            self.sampler.shuffle(self.epoch)
        workers, factor = self.options.workers, self.options.prefetch_factor
        pipeline = (
            PipelineBuilder()
            .add_source(self.indices())
            .pipe(self.make_batch, concurrency=workers, output_order="input")
            .add_sink(SINK_BUFFER if factor is None else factor * workers)
            .build(num_threads=workers)
        )
        with pipeline.auto_stop():
            yield from pipeline


class Batches:
    """Stacks the samples of a batch in one array."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __call__(self, indices):
        return numpy.stack([self.dataset[index] for index in indices])


class ImageBatches:
    def __init__(self, dataset):
        import spdl.io
        import torch

        try:
            spdl.io.utils.get_ffmpeg_versions()  # loads FFmpeg; otherwise the thread of the first sample loads it
        except RuntimeError as reason:
            raise NotApplicable(f"spdl.io finds no FFmpeg: {reason}") from None

        # Each thread uses one core, as on every other side.
        torch.set_num_threads(1)
        self.io, self.torch = spdl.io, torch
        self.dataset = dataset
        self.scale = torch.tensor([1 / (255 * std) for std in STD])[:, None, None]
        self.shift = torch.tensor([-mean / std for mean, std in zip(MEAN, STD)])[:, None, None]

    def __call__(self, indices):
        files = [self.dataset.file(index) for index in indices]
        frames = [self.decode(path) for path, _ in files]
        bytes_ = self.io.to_torch(self.io.convert_frames(frames))
        pixels = self.torch.empty((len(files), *IMAGE))
        pixels.copy_(bytes_.permute(0, 3, 1, 2))
        pixels.mul_(self.scale).add_(self.shift)
        return pixels.numpy(), numpy.array([label for _, label in files])

    def decode(self, path):
        packets = self.io.demux_image(path)
        codec = packets.codec
        left, top, width, height = random_crop(codec.width, codec.height, random.uniform, random.randrange)
        # FFmpeg's bilinear scaler antialiases when it makes pictures smaller.
        filters = [f"crop={width}:{height}:{left}:{top}", f"scale={IMAGE[2]}:{IMAGE[1]}:flags=bilinear"]
        if random.random() < 0.5:
            filters.append("hflip")
        filter_desc = self.io.get_video_filter_desc(filter_desc=",".join(filters), pix_fmt="rgb24")
        return self.io.decode_packets(packets, filter_desc=filter_desc)


if __name__ == "__main__":
    Spdl().main()
