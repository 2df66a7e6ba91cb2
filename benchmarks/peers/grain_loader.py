#!/usr/bin/env python3
"""The workloads on Google's Grain, with its Dataset API: `source -> batch -> to_iter_dataset -> mp_prefetch`.

Batches are made before the data is divided among the worker processes, so that any number of workers gives the same
batches in the same order. There are no reading threads (`num_threads=0`): Grain recommends this for data in memory, and
for files it makes N workers use N cores, as on every other side. Grain has no decoders, so Pillow and NumPy load the
images, with Grain's random numbers for each sample.
"""

import grain
import numpy
from absl import flags
from PIL import Image

from workloads import IMAGE, MEAN, STD, ImageFiles, Peer, random_crop


class Grain(Peer):
    name = "grain"

    def open(self, dataset, options, shuffle):
        return Loader(dataset, options, shuffle)

    def close(self, iterator):
        iterator.close()


class Loader:
    def __init__(self, dataset, options, shuffle):
        self.dataset, self.options, self.shuffle = dataset, options, shuffle
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1  # Grain's order depends only on the seed, so each epoch needs another seed
        samples = grain.MapDataset.source(self.dataset).seed(self.epoch)
        if self.shuffle:
            samples = samples.shuffle()
        if isinstance(self.dataset, ImageFiles):
            samples = samples.random_map(LoadImage())
        batches = samples.batch(self.options.batch_size, drop_remainder=True)
        batches = batches.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
        if self.options.workers > 0:
            flags.FLAGS.mark_as_parsed()  # Grain reads its flags when it starts workers
            buffers = {}
            if self.options.prefetch_factor is not None:
                buffers["per_worker_buffer_size"] = self.options.prefetch_factor
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=self.options.workers, **buffers))
        return iter(batches)


class LoadImage(grain.transforms.RandomMap):
    SCALE = (1 / (255 * numpy.array(STD))).astype(numpy.float32)[:, None, None]
    SHIFT = (-numpy.array(MEAN) / numpy.array(STD)).astype(numpy.float32)[:, None, None]

    def random_map(self, element, rng):
        path, label = element
        with Image.open(path) as image:
            left, top, width, height = random_crop(*image.size, rng.uniform, rng.integers)
            box = (left, top, left + width, top + height)
            # Crops and resizes in one call. Pillow's bilinear filter antialiases.
            image = image.convert("RGB").resize(IMAGE[:0:-1], Image.Resampling.BILINEAR, box=box)
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = numpy.empty(IMAGE, numpy.float32)
        numpy.multiply(numpy.asarray(image).transpose(2, 0, 1), self.SCALE, out=pixels)
        pixels += self.SHIFT
        return pixels, label


if __name__ == "__main__":
    Grain().main()
