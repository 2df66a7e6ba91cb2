#!/usr/bin/env python3
"""The workloads on TensorFlow's tf.data, which has threads in C++.

`workers` is both the number of parallel calls and the number of threads in the pipeline's own pool, so that tf.data
uses as many cores as the workers of another side. As its performance guide recommends, whole batches are mapped where
no sample needs separate work (vectorised), work is parallel, and batches are prefetched. Batches are NumPy arrays and
are not copied. The defaults are unchanged, except in process (`--workers 0`): one thread, and no prefetching.
"""

import dataclasses
import functools
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy  # noqa: E402
import tensorflow as tf  # noqa: E402

import workloads  # noqa: E402
from workloads import AREA, IMAGE, KEPT, MEAN, RATIO, STD, Peer  # noqa: E402

SCALE = (1 / (255 * numpy.array(STD))).astype(numpy.float32)
SHIFT = (-numpy.array(MEAN) / numpy.array(STD)).astype(numpy.float32)


class TfData(Peer):
    name = "tf.data"

    def open(self, dataset, options, shuffle):
        calls = options.workers or None
        pipeline = batches(dataset, options, shuffle, calls)
        settings = tf.data.Options()
        settings.threading.private_threadpool_size = max(1, options.workers)
        if options.workers == 0:
            settings.experimental_optimization.inject_prefetch = False
        elif options.prefetch_factor is None:
            pipeline = pipeline.prefetch(tf.data.AUTOTUNE)
        else:
            pipeline = pipeline.prefetch(options.prefetch_factor * options.workers)
        return Loader(pipeline.with_options(settings))


class Loader:
    def __init__(self, pipeline):
        self.pipeline = pipeline

    def __iter__(self):
        return self.pipeline.as_numpy_iterator()


@functools.singledispatch
def batches(dataset, options, shuffle, calls):
    raise NotImplementedError(type(dataset))


def order(count, shuffle):
    """Returns the indices. The shuffle buffer holds all of them; otherwise the order would be less random."""
    indices = tf.data.Dataset.range(count)
    return indices.shuffle(count) if shuffle else indices


def batched(samples, options, calls):
    return samples.batch(options.batch_size, drop_remainder=True, num_parallel_calls=calls)


@batches.register
def _(dataset: workloads.Integers, options, shuffle, calls):
    return batched(order(len(dataset), shuffle), options, calls)


@batches.register
def _(dataset: workloads.Repeated, options, shuffle, calls):
    return batched(tf.data.Dataset.from_tensors(dataset.sample).repeat(len(dataset)), options, calls)


@batches.register
def _(dataset: workloads.Names, options, shuffle, calls):
    names = tf.constant(dataset.names)
    lengths = lambda indices: tf.cast(tf.strings.length(tf.gather(names, indices)), tf.int64)
    return batched(order(len(dataset), shuffle), options, calls).map(lengths, num_parallel_calls=calls)


@batches.register
def _(dataset: workloads.Rows, options, shuffle, calls):
    table = tf.Variable(dataset.table, trainable=False)  # a constant would be copied into the function
    rows = lambda indices: tf.gather(table, indices)
    return batched(order(len(dataset), shuffle), options, calls).map(rows, num_parallel_calls=calls)


@batches.register
def _(dataset: workloads.Tokens, options, shuffle, calls):
    """Reads the file and does not map it: tf.data has no memory maps, and a Python function that has is slower."""
    sample_bytes = 2 * workloads.TOKENS
    samples = tf.data.FixedLengthRecordDataset(dataset.path, sample_bytes).take(len(dataset))
    if shuffle:
        samples = samples.shuffle(len(dataset))
    decode = lambda texts: tf.cast(tf.io.decode_raw(texts, tf.uint16), tf.int64)
    decoded = batched(samples, options, calls).map(decode, num_parallel_calls=calls)
    shape = [options.batch_size, workloads.TOKENS]
    return decoded.map(lambda tokens: tf.ensure_shape(tokens, shape))


@batches.register
def _(dataset: workloads.Stragglers, options, shuffle, calls):
    load = lambda index: tf.numpy_function(dataset.__getitem__, [index], tf.int64, stateful=False)
    return batched(order(len(dataset), shuffle).map(load, num_parallel_calls=calls), options, None)


@batches.register
def _(dataset: workloads.ImageFiles, options, shuffle, calls):
    """Decodes samples in any order, so that no sample waits for another."""
    paths, labels = tf.constant(dataset.paths), tf.constant(dataset.labels, tf.int64)

    def load(index):
        number = index % len(dataset.paths)
        return image(paths[number]), labels[number]

    samples = order(len(dataset), shuffle).map(load, num_parallel_calls=calls, deterministic=False)
    return batched(samples, options, None)


def image(path):
    """Loads an image as TensorFlow's own ImageNet programs do: decodes only the crop (`decode_and_crop_jpeg`)."""
    encoded = tf.io.read_file(path)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        bounding_boxes=tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=RATIO,
        area_range=AREA,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    top, left, _ = tf.unstack(begin)
    height, width, _ = tf.unstack(size)
    crop = tf.image.decode_and_crop_jpeg(encoded, tf.stack([top, left, height, width]), channels=IMAGE[0])
    pixels = tf.image.resize(crop, IMAGE[1:], method="bilinear", antialias=True)
    pixels = tf.image.random_flip_left_right(pixels)
    pixels = pixels * SCALE + SHIFT
    return tf.transpose(pixels, [2, 0, 1])


@dataclasses.dataclass
class KeptImages:
    """Scaled images that `cache` keeps in files. Without `count`, a pass over all of them, as they are."""

    images: workloads.ImageFiles
    file: str
    count: int | None = None


@batches.register
def _(dataset: KeptImages, options, shuffle, calls):
    """In the order of the files: `cache` keeps it, and a buffer that shuffles would hold all images in memory."""
    paths, labels = tf.constant(dataset.images.paths), tf.constant(dataset.images.labels, tf.int64)
    load = lambda number: (scaled(paths[number]), labels[number])
    kept = order(len(dataset.images), False).map(load, num_parallel_calls=calls, deterministic=False).cache(dataset.file)
    if dataset.count is None:
        return kept.batch(options.batch_size)
    crop = lambda pixels, label: (cropped(pixels), label)
    return batched(kept.take(dataset.count).map(crop, num_parallel_calls=calls), options, None)


def scaled(path):
    pixels = tf.image.decode_jpeg(tf.io.read_file(path), channels=IMAGE[0])
    sides = tf.shape(pixels)[:2]
    size = tf.cast(tf.round(sides * KEPT / tf.reduce_min(sides)), tf.int32)
    pixels = tf.image.resize(pixels, size, method="bilinear", antialias=True)
    pixels = tf.image.resize_with_crop_or_pad(pixels, KEPT, KEPT)
    return tf.cast(tf.round(pixels), tf.uint8)


def cropped(pixels):
    pixels = tf.image.random_crop(pixels, [*IMAGE[1:], IMAGE[0]])
    pixels = tf.cast(tf.image.random_flip_left_right(pixels), tf.float32) * SCALE + SHIFT
    return tf.transpose(pixels, [2, 0, 1])


def cached_images(peer, options):
    """Fills the files of `cache` in a first pass, which is timed too."""
    images = workloads.ImageFiles(options.folder)
    with tempfile.TemporaryDirectory(dir=pathlib.Path(options.folder).parent) as folder:
        kept = KeptImages(images, os.path.join(folder, "images"))
        called = time.perf_counter()
        for _ in peer.open(kept, options, False):
            pass
        rate = len(images) / (time.perf_counter() - called)
        kept.count = options.batches * options.batch_size
        workloads.image_rates(peer, options, peer.open(kept, options, False), filling_images_per_second=rate)


TfData.further_workloads = {"cached-images": cached_images}


if __name__ == "__main__":
    TfData().main()
