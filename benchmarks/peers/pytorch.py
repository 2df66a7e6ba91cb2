#!/usr/bin/env python3
"""The workloads on PyTorch's DataLoader, with the same command line, values and JSON lines as `loader-bench`.

Start method, number of threads and sharing strategy are PyTorch's defaults on Linux (fork, one thread per worker, file
descriptors), which are also its fast options. Samples are tensors, so that collation converts nothing.
"""

import bisect
import csv
import functools
import json
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import threading
import time

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from workloads import (
    CSV_NUMBERS,
    IMAGE,
    KEPT,
    MEAN,
    START_SAMPLES,
    STD,
    ImageFiles,
    Integers,
    NotApplicable,
    Paced,
    Peer,
    Repeated,
    Sticky,
    alive,
    files,
    image_rates,
    next_checksum,
    pages,
    repeated_sample,
    shutdown,
    spread,
    verify,
)

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "loader-python/examples"
RESUME_AT = 10_000  # batches
KILL_WITHIN = 0.01  # a kill comes at most this many seconds after the middle of the epoch
WATCHED = 0.05  # a gap counts if it begins at most this many seconds after the kill
GOLDEN = 0.618_033_988_749_895  # the fractional parts of its multiples are evenly distributed
DROP_AFTER = 10  # batches before the iterator is dropped
PATIENCE = 2.0  # seconds that workers have to end after the drop


class PyTorch(Peer):
    name = "pytorch"

    def open(self, dataset, options, shuffle):
        of_workers = {"prefetch_factor": options.prefetch_factor} if options.workers > 0 else {}
        if options.start_method is not None:
            of_workers["multiprocessing_context"] = options.start_method
        return loader_class(options.package)(
            dataset,
            batch_size=options.batch_size,
            shuffle=shuffle,
            num_workers=options.workers,
            drop_last=True,
            **of_workers,
        )

    def workers(self, iterator):
        return [worker.pid for worker in getattr(iterator, "_workers", [])]

    def sample_of(self, array):
        return torch.from_numpy(array)

    def array_of(self, batch):
        return batch.numpy()

    def images(self, options, count):
        if options.pipeline == "rust":
            return rust_images(options.folder, count)
        return ImageFiles(options.folder, count, PIPELINES[options.pipeline]())


def loader_class(package):
    """Returns PyTorch's DataLoader, or that of this loader's Python package, which takes the same arguments."""
    if package == "torch":
        return DataLoader
    from loader import DataLoader as OfThisLoader

    return OfThisLoader


def pillow():
    """Returns a function that loads an image with Pillow, as in PyTorch's ImageNet example."""
    from PIL import Image
    from torchvision import transforms

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(IMAGE[1:]),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    def load(path):
        with Image.open(path) as image:
            return transform(image.convert("RGB"))

    return load


def torchvision():
    """Returns a function that loads an image with the transforms v2 on tensors of bytes, the fast ones
    according to torchvision's documentation."""
    decode, transform = decoder(), augmentation()
    return lambda path: transform(decode(path))


def decoder():
    """Returns torchvision's decoder, which takes a path or the bytes of a file as a tensor."""
    from torchvision.io import ImageReadMode, decode_image

    return functools.partial(decode_image, mode=ImageReadMode.RGB)


def augmentation():
    """Returns the random transform of a decoded image."""
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(IMAGE[1:], antialias=True), *flip_and_normalise()])


def flip_and_normalise():
    from torchvision.transforms import v2

    return [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def rust_images(folder, count):
    """Returns the dataset of this loader's Python package, whose workers run no Python code. The files are repeated as in
    `ImageFiles`."""
    from loader import ImageFolder
    from loader.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop

    images = ImageFolder(folder, [RandomResizedCrop(IMAGE[1:]), RandomHorizontalFlip(), Normalize(MEAN, STD)])
    return Subset(images, [index % len(images) for index in range(count)])


PIPELINES = {"pillow": pillow, "torchvision": torchvision}


class KeptImages:
    """Images that lie scaled in an array of bytes, repeated until there are `count` samples."""

    def __init__(self, pixels, labels, count, transform):
        self.pixels, self.labels, self.count, self.transform = pixels, labels, count, transform

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        number = index % len(self.labels)
        return self.transform(torch.from_numpy(self.pixels[number])), self.labels[number]


def cached_images(peer, options):
    """Scales each image, crops a random part of it and normalises it. With `--pipeline memmap`, a first pass keeps the scaled
    images in a file, which later epochs map; otherwise each epoch decodes and scales them."""
    from torchvision.transforms import v2

    if options.pipeline not in ("memmap", "torchvision"):
        raise NotApplicable(f"`cached-images` has no pipeline `{options.pipeline}`")
    decode, scale = decoder(), v2.Compose([v2.Resize(KEPT, antialias=True), v2.CenterCrop(KEPT)])
    crop = v2.Compose([v2.RandomCrop(IMAGE[1:]), *flip_and_normalise()])
    count = options.batches * options.batch_size
    if options.pipeline == "torchvision":
        images = ImageFiles(options.folder, count, lambda path: crop(scale(decode(path))))
        image_rates(peer, options, peer.open(images, options, True))
        return
    images = ImageFiles(options.folder, None, lambda path: scale(decode(path)))
    with tempfile.NamedTemporaryFile(dir=pathlib.Path(options.folder).parent) as file:
        # Plain arrays over the map, because slices of `memmap` cost more.
        pixels = numpy.asarray(numpy.memmap(file.name, numpy.uint8, "w+", shape=(len(images), 3, KEPT, KEPT)))
        called, kept = time.perf_counter(), 0
        for batch, _ in DataLoader(images, options.batch_size, num_workers=options.workers):
            pixels[kept : kept + len(batch)] = batch.numpy()
            kept += len(batch)
        rate = kept / (time.perf_counter() - called)
        loader = peer.open(KeptImages(pixels, images.labels, count, crop), options, True)
        image_rates(peer, options, loader, filling_images_per_second=rate)


class ParquetRows(IterableDataset):
    """Rows that pyarrow decodes many at a time. Its columns become tensors or arrays at once, so that Python only takes a row
    of each; `to_pylist` would make Python numbers of them. With `whole_batches`, Python takes no rows at all."""

    def __init__(self, path, whole_batches):
        self.path, self.whole_batches = path, whole_batches

    def __iter__(self):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(self.path) as file:
            for rows in file.iter_batches(batch_size=self.whole_batches or 65_536):
                x = torch.from_numpy(rows["x"].flatten().to_numpy().reshape(len(rows), -1))
                weights, labels = rows["weight"].to_numpy(), rows["label"].to_numpy()
                if self.whole_batches:
                    yield x, torch.from_numpy(weights), torch.from_numpy(labels)
                else:
                    yield from zip(x.unbind(), weights, labels.tolist())


class ArrowRows:
    """Rows of an Arrow file that is mapped. The columns of each record batch are arrays over the map."""

    def __init__(self, path):
        import pyarrow

        self.parts, self.ends = [], []
        file = pyarrow.ipc.open_file(pyarrow.memory_map(path))
        for number in range(file.num_record_batches):
            rows = file.get_batch(number)
            x = rows["x"].flatten().to_numpy().reshape(len(rows), -1)
            self.parts.append((x, rows["weight"].to_numpy(), rows["label"].to_numpy()))
            self.ends.append(len(self) + len(rows))

    def __len__(self):
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, index):
        part = bisect.bisect_right(self.ends, index)
        row = index - (self.ends[part - 1] if part else 0)
        x, weights, labels = self.parts[part]
        return torch.from_numpy(x[row]), weights[row], labels[row]


class CsvRows(IterableDataset):
    """Rows of CSV, split by Python's own library."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path, newline="") as file:
            rows = csv.reader(file)
            next(rows)  # the header
            for row in rows:
                yield *map(numpy.float32, row[:CSV_NUMBERS]), int(row[CSV_NUMBERS])


class JsonRows(IterableDataset):
    """Rows of JSON lines, parsed by Python's own library."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path) as file:
            for line in file:
                row = json.loads(line)
                yield torch.tensor(row["tokens"]), row["label"], row["text"]


def parquet(peer, options):
    if options.whole_batches:
        # A record batch of pyarrow does not end with a row group, so these are the batches of all sides.
        rows = ParquetRows(options.file, options.batch_size)
        files(peer, options, DataLoader(rows, batch_size=None, num_workers=options.workers))
    else:
        files(peer, options, peer.open(ParquetRows(options.file, None), options, False))


def json_lines(peer, options):
    files(peer, options, peer.open(JsonRows(options.file), options, False))


def arrow(peer, options):
    rows = ArrowRows(options.file)
    files(peer, options, peer.open(rows, options, options.shuffle), peer.open(rows, options, False))


def csv_rows(peer, options):
    files(peer, options, peer.open(CsvRows(options.file), options, False))


def train(peer, options):
    """Trains the example of this loader's Python package for an epoch. Its two imports come from the package that is measured."""
    sys.path.insert(0, str(EXAMPLES))
    import train_photos

    loader = train_photos.loader_of(options.package, options.folder, options.batch_size, options.workers)
    net = train_photos.network("small", len(loader.dataset.classes))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    rates = [train_photos.rate_of_loading(loader) for _ in range(options.epochs)]
    trained = [train_photos.train_epoch(loader, net, optimizer, "cpu")[1] for _ in range(options.epochs)]
    peer.line(options, loading_images_per_second=spread(rates), training_images_per_second=spread(trained))


def minor_faults(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[7])


def steady(peer, options):
    """Counts the page faults of all processes in the middle half of an epoch of 38.5 MB batches."""
    total = options.batches
    first, last = total // 4, total * 3 // 4
    sample = peer.sample_of(repeated_sample(options))
    iterator = iter(peer.open(Repeated(total * options.batch_size, sample), options, False))
    moments = {}
    for number in range(last + 1):
        batch = next(iterator)
        pages(peer.array_of(batch))
        batch_bytes = batch.numel() * batch.element_size()
        del batch
        if number in (first, last):
            pids = [os.getpid()] + [worker.pid for worker in iterator._workers]
            moments[number] = [minor_faults(pid) for pid in pids]
    main, *workers = (after - before for before, after in zip(moments[first], moments[last]))
    peer.line(options, batches=last - first, batch_bytes=batch_bytes, main_faults=main, worker_faults=workers)


def resume(peer, options):
    """Measures torchdata's StatefulDataLoader in place of PyTorch's own loader, which has no state. It resumes with the
    same number of workers."""
    stateful_loader = stateful_loader_class(options.package)
    stop, compared = options.batches or RESUME_AT, 20

    def loader():
        return stateful_loader(
            Integers(START_SAMPLES),
            batch_size=options.batch_size,
            shuffle=options.shuffle,
            num_workers=options.workers,
            generator=torch.Generator().manual_seed(0),
        )

    first = loader()
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    saves, resumes = [], []
    for _ in range(options.epochs):
        called = time.perf_counter()
        state = json.dumps(first.state_dict(), default=as_text)
        saves.append((time.perf_counter() - called) * 1e6)
        state_dict = first.state_dict()
    expected = [next(iterator) for _ in range(compared)]
    del iterator, first
    for _ in range(options.epochs):
        second = loader()
        called = time.perf_counter()
        second.load_state_dict(state_dict)
        rest = iter(second)
        batches = [next(rest)]
        resumes.append((time.perf_counter() - called) * 1e3)
        batches += [next(rest) for _ in range(compared - 1)]
        assert all(map(torch.equal, batches, expected)), "the resumed run gives other batches"
        del rest, second
    peer.line(
        options,
        state_bytes=len(state),
        save_us=spread(saves),
        resume_ms=spread(resumes),
        check={"batches": compared},
    )


def stateful_loader_class(package):
    if package == "loader":
        return loader_class(package)
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        raise NotApplicable("torchdata is not installed") from None
    return StatefulDataLoader


def as_text(value):
    """Formats a value that JSON does not support: the state of a generator, a tensor of bytes."""
    return bytes(value.tolist()).hex()


class Epoch:
    """An epoch in which a worker may be killed, and the code with which a program goes on, which PyTorch leaves to its
    users."""

    def __init__(self, peer, options, after, delay, victim, number):
        self.peer, self.options = peer, options
        self.after, self.delay, self.victim, self.number = after, delay, victim, number
        self.killer, self.moment = None, None
        self.taken = []
        self.lost = 0  # batches that the first iterator did not return

    def read(self, loader, anew):
        """Reads the epoch to its end. After an error, `anew` returns the loader to go on with and the number of its
        first batches to skip."""
        called = time.perf_counter()
        skipped = 0
        while True:
            iterator = iter(loader)
            try:
                workers = [worker.pid for worker in iterator._workers]
                for number, batch in enumerate(iterator):
                    if number >= skipped:
                        self.take(batch, workers)
                break
            except Exception:  # a signal handler raises it, so it may have several types and come from any line
                self.lost = self.options.batches - len(self.taken)
            del iterator
            loader, skipped = anew(len(self.taken))
        self.seconds = time.perf_counter() - called
        self.killer.join()
        return self

    def take(self, batch, workers):
        self.taken.append((batch, time.perf_counter()))
        if len(self.taken) == self.after and self.killer is None:
            self.killer = threading.Thread(target=self.kill, args=[workers[self.victim]])
            self.killer.start()

    def kill(self, worker):
        time.sleep(self.delay)
        self.moment = time.perf_counter()
        os.kill(worker, self.number)

    def checksum(self):
        checksum = 0
        for batch, _ in self.taken:
            checksum = next_checksum(checksum, self.peer.array_of(batch))
        return f"{checksum:016x}"

    def beyond_usual(self):
        """Returns the longest gap around the kill minus the usual gap, and the usual gap, in milliseconds. `killed.rs`
        computes them in the same way."""
        arrivals = [arrived for _, arrived in self.taken]
        pairs = list(zip(arrivals, arrivals[1:]))
        around = [late - early for early, late in pairs if late > self.moment and early < self.moment + WATCHED]
        before = [late - early for early, late in pairs[self.options.batches // 5 :] if late < self.moment]
        workers = self.options.workers
        usual = statistics.median(max(before[at : at + workers]) for at in range(len(before) - workers + 1))
        return (max(around) - usual) * 1e3, usual * 1e3


def killed(peer, options):
    """Measures how long a program needs to go on after a worker was killed, which ends the epoch with an error. It is
    measured in two ways: with a new iterator, of which the program skips the batches that it has already seen (they are
    loaded again); and with a loader over the missing indices, which needs a program that knows the order."""
    dataset = Paced(options.batches * options.batch_size)
    check = verify(peer, options, dataset)
    loader = peer.open(dataset, options, False)

    def rest(seen):
        missing = range(seen * options.batch_size, len(dataset))
        return peer.open(Subset(dataset, missing), options, False), 0

    names = ("recovery_ms", "undisturbed_ms", "usual_gap_ms", "epoch_longer_ms", "lost_batches")
    figures = {name: [] for name in names}
    by_index = []
    for number in range(options.epochs):
        moment = (number * GOLDEN) % 1 * KILL_WITHIN
        fault = (peer, options, options.batches // 2, moment, number % options.workers)
        quiet = Epoch(*fault, 0).read(loader, None)
        again = Epoch(*fault, signal.SIGKILL).read(loader, lambda seen: (loader, seen))
        indexed = Epoch(*fault, signal.SIGKILL).read(loader, rest)
        for epoch in (quiet, again, indexed):
            assert epoch.checksum() == check["checksum"], "the epoch has other batches"
        assert quiet.lost == 0, "an epoch ended with an error although no worker was killed"
        recovery, usual = again.beyond_usual()
        figures["recovery_ms"].append(recovery)
        figures["usual_gap_ms"].append(usual)
        figures["undisturbed_ms"].append(quiet.beyond_usual()[0])
        figures["epoch_longer_ms"].append((again.seconds - quiet.seconds) * 1e3)
        figures["lost_batches"].append(again.lost)
        by_index.append(indexed.beyond_usual()[0])
    peer.line(
        options,
        **{name: spread(of) for name, of in figures.items()},
        recovery_by_index_ms=spread(by_index),
        check=check,
    )


def shutdown_with_fault(peer, options):
    """Measures the drop of an iterator. With `--fault`, one worker is in a bad state at the drop. If a worker still
    runs `PATIENCE` seconds after the drop, this program kills it and counts it as left."""
    if options.fault == "none":
        return shutdown(peer, options)
    gone, returned, left = [], [], 0
    for _ in range(options.epochs + 1):
        with tempfile.TemporaryDirectory() as folder:
            note = os.path.join(folder, "stuck")
            sticks = options.fault in ("stuck", "blocked")
            at = (DROP_AFTER + 1) * options.batch_size if sticks else -1
            dataset = Sticky(1_000_000, at, options.fault == "blocked", note)
            held = [iter(peer.open(dataset, options, options.shuffle))]
            workers = [worker.pid for worker in held[0]._workers]
            for _ in range(DROP_AFTER):
                next(held[0])
            begin(options.fault, workers[0], note)
            called = time.perf_counter()
            held.clear()
            returned.append((time.perf_counter() - called) * 1e3)
            while any(map(alive, workers)) and time.perf_counter() < called + returned[-1] / 1e3 + PATIENCE:
                time.sleep(0.0005)
            gone.append((time.perf_counter() - called) * 1e3)
            for worker in filter(alive, workers):
                left += 1
                os.kill(worker, signal.SIGKILL)
    peer.line(options, drop_ms=spread(gone[1:]), returned_ms=spread(returned[1:]), left=left, drops=len(gone))


def begin(fault, victim, note):
    """Brings the worker into the state `fault` and returns when it is there."""
    if fault == "stopped":
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.01)
    elif fault == "killed":
        try:
            os.kill(victim, signal.SIGKILL)
            time.sleep(1)
        except RuntimeError:
            return  # PyTorch has reported the death
        raise AssertionError("the worker's death was not noticed")
    else:
        while not os.path.exists(note):
            time.sleep(0.001)


PyTorch.further_workloads = {
    "steady": steady,
    "resume": resume,
    "killed": killed,
    "shutdown": shutdown_with_fault,
    "parquet": parquet,
    "arrow": arrow,
    "json-lines": json_lines,
    "csv": csv_rows,
    "cached-images": cached_images,
    "train": train,
}


if __name__ == "__main__":
    PyTorch().main()
