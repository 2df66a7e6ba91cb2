"""The code that all Python peers share: the command line, the datasets, and the measurement of each workload.

A peer is a class derived from `Peer` that sets its library up for a dataset of this module. `Peer.main` does the rest.
"""

import argparse
import gc
import json
import math
import os
import pathlib
import resource
import signal
import statistics
import sys
import time

import numpy

IMAGE = (3, 224, 224)
KEPT = 256  # height and width of an image that `cached-images` keeps
SHAPES = {"image": IMAGE, "row": (4096,), "short-row": (256,)}
TOKENS = 2048  # number of tokens in a sample
PAGE = 4096  # bytes
WARM_UP_DIVISOR = 5
START_SAMPLES = 1_000_000
MEMORY_SHAPE = (262_144, 1024)  # 1 GB of f32
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
DEFAULT_BATCHES = {"overhead": 2000, "memory": 400, "stragglers": 200, "steady": 80, "killed": 200}
DEFAULT_BANDWIDTH_BATCHES = {"image": 60, "row": 1000, "short-row": 2000}
MAX_TOKEN_BATCHES = 1000
CSV_NUMBERS = 8  # columns of numbers in a file of CSV
# The columns of a batch of each format.
COLUMNS = {
    "parquet": ["x", "weight", "label"],
    "arrow": ["x", "weight", "label"],
    "json-lines": ["tokens", "label", "text"],
    "csv": [*(f"x{number}" for number in range(CSV_NUMBERS)), "label"],
    "tar": ["f32", "cls"],
}
DEFAULT_BATCH_SIZE = {"tokens": 16, "stragglers": 16, "killed": 4, **{workload: 256 for workload in COLUMNS}}
CHECKED = {"overhead": 64, "bandwidth": 3, "tokens": 16, "stragglers": 4}
CHECKED_OF_FILES = 16
NOT_APPLICABLE = 3


class NotApplicable(Exception):
    """Why the peer does not support a workload or an option."""


class Integers:
    """Each sample is its index."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index


class Repeated:
    """Returns the same sample for every index, so that loading costs only the copy into the batch."""

    def __init__(self, count, sample):
        self.count = count
        self.sample = sample

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.sample


class Names:
    """A list of file names, as most programs have one. A sample is the length of a name."""

    def __init__(self, count):
        self.names = [f"train/class-{number % 1000:04}/image-{number:08}.jpeg" for number in range(count)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return len(self.names[index])


class Rows:
    """The rows of one large table in memory."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return self.table[index]


class Tokens:
    """Sequences of tokens in a file of u16. Each process maps the file when it reads its first sample."""

    def __init__(self, path, count, sample_of):
        self.path = path
        self.count = count
        self.sample_of = sample_of  # converts a NumPy array to the peer's type
        self.tokens = None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.tokens is None:
            # A plain array over the map, because slices of `memmap` cost more.
            self.tokens = numpy.asarray(numpy.memmap(self.path, dtype="<u2", mode="r"))
        return self.sample_of(self.tokens[index * TOKENS : (index + 1) * TOKENS].astype(numpy.int64))

    def __getstate__(self):
        return {**self.__dict__, "tokens": None}


class Stragglers:
    """Each sample is its index. It takes 4 ms; about one in a hundred takes 200 ms."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(straggler_seconds(index))
        return index


def straggler_seconds(index):
    return 0.2 if index * 2654435761 % 2**32 % 100 == 7 else 0.004


class Paced:
    """Each sample is its index and takes a millisecond."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.001)
        return index


class Sticky:
    """Each sample is its index. The sample `at` creates the file `note` and then takes 30 seconds, with all signals
    blocked if `blocks_signals` is set. If `at` is -1, there is no such sample."""

    def __init__(self, count, at, blocks_signals, note):
        self.count = count
        self.at = at
        self.blocks_signals = blocks_signals
        self.note = note

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.at:
            if self.blocks_signals:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            open(self.note, "w").close()
            time.sleep(30)
        return index


class ImageFiles:
    """Folders of JPEGs, one per class. The files are repeated until there are `count` samples. A sample is `load(path)`
    and the number of the class, or, without `load`, the path and that number, for a later stage of the pipeline."""

    def __init__(self, folder, count=None, load=None):
        self.paths, self.labels = [], []
        for label, name in enumerate(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())):
            files = [path for path in pathlib.Path(folder, name).iterdir() if path.suffix.lower() in (".jpg", ".jpeg")]
            self.paths += sorted(map(str, files))
            self.labels += [label] * len(files)
        if not self.paths:
            sys.exit(f"{folder}: there are no class folders with JPEGs")
        self.count = count or len(self.paths)
        self.load = load

    def __len__(self):
        return self.count

    def file(self, index):
        """Returns the path and the class of a sample."""
        number = index % len(self.paths)
        return self.paths[number], self.labels[number]

    def __getitem__(self, index):
        path, label = self.file(index)
        return path if self.load is None else self.load(path), label


def random_crop(width, height, uniform, integer):
    """Returns left, top, width and height of a random crop, chosen as by torchvision's RandomResizedCrop. `uniform(low,
    high)` and `integer(count)` return random numbers of the peer."""
    for _ in range(10):
        area = width * height * uniform(*AREA)
        ratio = math.exp(uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return integer(width - wide + 1), integer(height - high + 1), wide, high
    # No random crop fits, so the crop is the largest one with an allowed ratio, in the middle.
    wide, high = width, height
    if width / height < RATIO[0]:
        high = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        wide = round(height * RATIO[1])
    return (width - wide) // 2, (height - high) // 2, wide, high


def repeated_sample(options):
    """Returns the sample of `bandwidth`. Each element differs from its neighbours and is exact in its type."""
    shape = SHAPES[options.sample]
    elements = numpy.arange(math.prod(shape))
    values = elements % 251 if options.dtype == "u8" else elements / 4
    return values.astype({"f32": numpy.float32, "u8": numpy.uint8}[options.dtype]).reshape(shape)


def memory_table():
    rows, columns = MEMORY_SHAPE
    return numpy.tile(numpy.arange(2**20, dtype=numpy.float32), rows * columns // 2**20).reshape(MEMORY_SHAPE)


def spread(figures):
    return {"median": statistics.median(figures), "min": min(figures), "max": max(figures)}


def cpu_microseconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) * 1e6


def children():
    """Returns the processes that this one has started, and those that these have started, except the one that cleans up after
    Python's `multiprocessing`."""
    parents = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            state, parent = pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:2]
            command = pathlib.Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue  # the process has just ended
        if state != "Z" and b"resource_tracker" not in command:
            parents[int(entry.name)] = int(parent)
    found, checked = [], {os.getpid()}
    while checked:
        checked = {pid for pid, parent in parents.items() if parent in checked}
        found += checked
    return sorted(found)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def memory_of(pid):
    figures = {"private": 0, "shared_map_private": 0, "pss": 0}
    shared = False
    with open(f"/proc/{pid}/smaps") as smaps:
        for text in smaps:
            name, value, *_ = text.split()
            if not name.endswith(":"):
                shared = value.endswith("s")  # the first line of a map: addresses, permissions and so on
            elif name in ("Private_Clean:", "Private_Dirty:"):
                figures["shared_map_private" if shared else "private"] += int(value) * 1024
            elif name == "Pss:":
                figures["pss"] += int(value) * 1024
    return figures


class Peer:
    """A data loader that is measured."""

    name = None
    further_workloads = {}  # name: function that takes the peer and the options

    def open(self, dataset, options, shuffle):
        """Returns an iterable over the batches, with one epoch per `iter()`. All batches have the same size."""
        raise NotImplementedError

    def sample_of(self, array):
        """Converts a NumPy array to a sample of the type that users of the peer have."""
        return array

    def images(self, options, count):
        """Returns the dataset of `images`. Each peer decides what a sample is."""
        return ImageFiles(options.folder, count)

    def array_of(self, batch):
        """Returns a batch as a NumPy array, without a copy."""
        return batch

    def close(self, iterator):
        """Ends an iterator, for libraries in which it is not enough to drop it."""

    def main(self):
        options = self.parse()
        workloads = {**WORKLOADS, **self.further_workloads}
        try:
            workloads[options.workload](self, options)
        except NotApplicable as reason:
            print(f"{self.name}: {reason}", file=sys.stderr)
            sys.exit(NOT_APPLICABLE)

    def parse(self):
        parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
        parser.add_argument("workload", choices=[*{**WORKLOADS, **self.further_workloads}])
        parser.add_argument("--workers", type=int, default=1)
        parser.add_argument("--batch-size", type=int)
        parser.add_argument("--batches", type=int)
        parser.add_argument("--epochs", type=int)
        parser.add_argument("--shuffle", action="store_true")
        parser.add_argument("--prefetch-factor", type=int)
        parser.add_argument("--read", choices=["ends", "pages"], default="ends")
        parser.add_argument("--sample", choices=SHAPES, default="image")
        parser.add_argument("--dtype", choices=["f32", "u8"], default="f32")
        parser.add_argument("--dataset", choices=["trivial", "names", "memory"], default="trivial")
        parser.add_argument("--fault", choices=["none", "stuck", "stopped", "killed", "blocked"], default="none")
        parser.add_argument("--file")
        parser.add_argument("--folder")
        parser.add_argument("--records", action="store_true", help="only this loader has two types of rows")
        parser.add_argument("--whole-batches", action="store_true")
        parser.add_argument("--streaming", action="store_true")
        parser.add_argument("--start-method", choices=["fork", "forkserver", "spawn"])
        parser.add_argument("--resident-gb", type=int, default=0, help="GB of memory that main holds while workers start")
        parser.add_argument("--package", choices=["torch", "loader"], default="torch", help="the package whose DataLoader loads")
        parser.add_argument("--pipeline", choices=["memmap", "pillow", "rust", "torchvision"], default="torchvision")
        options = parser.parse_args()
        folders, of_files = ("images", "cached-images"), ("tokens", "tar-images", *COLUMNS)
        for workload, needed in (*((name, "folder") for name in folders), *((name, "file") for name in of_files)):
            if options.workload == workload and getattr(options, needed) is None:
                parser.error(f"{workload} needs --{needed}")
        if options.batch_size is None:
            options.batch_size = DEFAULT_BATCH_SIZE.get(options.workload, 64)
        if options.epochs is None:
            options.epochs = {"stragglers": 1, "killed": 20}.get(options.workload, 3)
        if options.batches is None:
            options.batches = default_batches(options)
        return options

    def line(self, options, **figures):
        print(json.dumps({"loader": self.name, "options": vars(options), **figures}), flush=True)

    def workers(self, iterator):
        """Returns the process ids of the iterator's workers."""
        return children()

    def end(self, held):
        """Drops the iterator in the list `held`, which has the only reference to it. Returns the milliseconds until its
        workers have ended."""
        workers = self.workers(held[0])
        called = time.perf_counter()
        self.close(held[0])
        held.clear()
        while any(map(alive, workers)):
            time.sleep(0.0005)
        return (time.perf_counter() - called) * 1e3


def default_batches(options):
    if options.workload == "bandwidth":
        return DEFAULT_BANDWIDTH_BATCHES[options.sample]
    if options.workload == "tokens":
        return min(MAX_TOKEN_BATCHES, token_samples(options) // options.batch_size)
    if options.workload in ("images", "cached-images"):
        return len(ImageFiles(options.folder)) // options.batch_size
    return DEFAULT_BATCHES.get(options.workload)


def token_samples(options):
    return os.path.getsize(options.file) // 2 // TOKENS


def throughput(peer, options, open_dataset, look):
    """Measures the time per batch in steady state. `open_dataset` makes a dataset with the given number of samples.
    `look` reads what the program reads of a batch."""
    check = verify(peer, options, open_dataset(CHECKED[options.workload] * options.batch_size))
    loader = peer.open(open_dataset(options.batches * options.batch_size), options, options.shuffle)
    steady_state(peer, options, loader, lambda batch: look(peer.array_of(batch)), check)


def steady_state(peer, options, loader, look, check):
    """Measures the time per batch and prints it with `check`."""
    per_batch, gaps, cpu = epochs(peer, options, loader, look)
    peer.line(
        options,
        batches=options.batches,
        us_per_batch=spread(per_batch),
        p99_us=sorted(gaps)[(len(gaps) - 1) * 99 // 100],
        cpu_us_per_batch=cpu / (options.batches * options.epochs),
        check=check,
    )


def epochs(peer, options, loader, look):
    """Returns for each epoch the microseconds per batch after its first fifth, then all times between batches, then the
    processor time in microseconds."""
    warm_up = options.batches // WARM_UP_DIVISOR
    per_batch, gaps, seen = [], [], 0.0
    cpu = cpu_microseconds()
    for _ in range(options.epochs):
        arrivals = []
        iterator = iter(loader)
        for batch in iterator:
            seen += look(batch)
            arrivals.append(time.perf_counter_ns())
        peer.close(iterator)
        del iterator, batch
        assert len(arrivals) == options.batches, f"{len(arrivals)} of {options.batches} batches"
        steady = arrivals[warm_up:]
        per_batch.append((steady[-1] - steady[0]) / (len(steady) - 1) / 1e3)
        gaps += [(late - early) / 1e3 for early, late in zip(steady, steady[1:])]
    return per_batch, gaps, cpu_microseconds() - cpu


def files(peer, options, loader, in_order=None):
    """Measures a loader over a file. A batch is a dict or a sequence of the columns in `COLUMNS`. The checksum is that of
    `in_order`, if the loader is shuffled."""
    checksum, seen = 0, []
    for number, batch in enumerate(loader if in_order is None else in_order):
        if number == CHECKED_OF_FILES:
            break
        if isinstance(batch, dict):
            batch = [batch[name] for name in COLUMNS[options.workload]]
        seen = []
        for column in batch:
            if isinstance(column[0], str):
                shape, dtype, column = [len(column)], "text", numpy.frombuffer("".join(column).encode(), numpy.uint8)
            else:
                column = numpy.asarray(column)
                shape, dtype = list(column.shape), str(column.dtype)
            checksum = next_checksum(checksum, column)
            seen.append([shape, dtype])
    check = {"batches": CHECKED_OF_FILES, "columns": seen, "checksum": f"{checksum:016x}"}
    steady_state(peer, options, loader, lambda batch: 0.0, check)


def verify(peer, options, dataset):
    """Computes the same checksum as `Checksum` on the loader's side. The batches are not shuffled, because each side
    shuffles in its own way."""
    checksum, shape, dtype, batches = 0, (), None, 0
    iterator = iter(peer.open(dataset, options, False))
    for batch in iterator:
        array = peer.array_of(batch)
        checksum = next_checksum(checksum, array)
        shape, dtype, batches = list(array.shape), str(array.dtype), batches + 1
    peer.close(iterator)
    return {"batches": batches, "shape": shape, "dtype": dtype, "checksum": f"{checksum:016x}"}


def next_checksum(checksum, array):
    """Returns the checksum of the batches up to and including this one."""
    flat = numpy.ascontiguousarray(array).reshape(-1)
    values = flat.view(f"u{flat.itemsize}").astype(numpy.uint64)
    positions = numpy.arange(1, len(values) + 1, dtype=numpy.uint64)
    total = int((values * positions).sum(dtype=numpy.uint64))
    return (checksum * 1_000_003 + total) % 2**64


def ends(array):
    flat = array.reshape(-1)
    return float(flat[0]) + float(flat[-1])


def pages(array):
    return float(array.reshape(-1)[:: PAGE // array.itemsize].sum())


def overhead(peer, options):
    throughput(peer, options, Integers, ends)


def bandwidth(peer, options):
    sample = peer.sample_of(repeated_sample(options))
    throughput(peer, options, lambda count: Repeated(count, sample), ends if options.read == "ends" else pages)


def tokens(peer, options):
    batches = max(options.batches, CHECKED["tokens"])
    if batches * options.batch_size > token_samples(options):
        sys.exit(f"{options.file} has {token_samples(options)} samples, not {batches} batches of {options.batch_size}")
    throughput(peer, options, lambda count: Tokens(options.file, count, peer.sample_of), ends)


def images(peer, options):
    dataset = peer.images(options, options.batches * options.batch_size)
    image_rates(peer, options, peer.open(dataset, options, True))


def image_rates(peer, options, loader, **figures):
    """Measures the images per second of a loader, and prints them with `figures`."""
    shapes = set()

    def look(batch):
        array = peer.array_of(batch[0])
        shapes.add((array.shape, str(array.dtype)))
        return ends(array)

    per_batch, _, cpu = epochs(peer, options, loader, look)
    ((shape, dtype),) = shapes
    samples = options.batches * options.batch_size * options.epochs
    peer.line(
        options,
        batches=options.batches,
        images_per_second=spread([options.batch_size / micros * 1e6 for micros in per_batch]),
        **figures,
        cpu_ms_per_image=cpu / samples / 1e3,
        check={"batches": options.batches, "shape": list(shape), "dtype": dtype},
    )


def start_loader(peer, options):
    if options.dataset == "trivial":
        dataset = Integers(START_SAMPLES)
    elif options.dataset == "names":
        dataset = Names(START_SAMPLES)
    else:
        dataset = Rows(peer.sample_of(memory_table()))
    return peer.open(dataset, options, options.shuffle)


def start(peer, options):
    loader = start_loader(peer, options)
    # `numpy.ones` writes each page, so the kernel gives the process its memory.
    resident = numpy.ones(options.resident_gb * 1_000_000_000, numpy.uint8)
    starts, iters, drops = [], [], []
    for _ in range(options.epochs + 1):
        gc.collect()  # before the measurement, because its time depends on the modules that a program has imported
        called = time.perf_counter()
        held = [iter(loader)]
        iters.append((time.perf_counter() - called) * 1e3)
        batch = next(held[0])
        starts.append((time.perf_counter() - called) * 1e3)
        ends(peer.array_of(batch))
        del batch
        drops.append(peer.end(held))
    del resident
    # The first start in a process is reported separately.
    times = {"first_batch_ms": starts, "iter_ms": iters, "drop_ms": drops}
    peer.line(options, cold_ms=starts[0], **{name: spread(of_epochs[1:]) for name, of_epochs in times.items()})


def shutdown(peer, options):
    if options.fault != "none":
        raise NotApplicable("`--fault` is not supported")
    loader = peer.open(Integers(START_SAMPLES), options, options.shuffle)
    drops = []
    for _ in range(options.epochs + 1):
        gc.collect()
        held = [iter(loader)]
        for _ in range(10):
            next(held[0])
        drops.append(peer.end(held))
    peer.line(options, drop_ms=spread(drops[1:]))


def memory(peer, options):
    held = [iter(start_loader(peer, options))]
    for _ in range(options.batches):
        ends(peer.array_of(next(held[0])))
    main = memory_of(os.getpid())
    workers = [memory_of(pid) for pid in children()]
    pss = main["pss"] + sum(worker["pss"] for worker in workers)
    peer.end(held)
    peer.line(options, batches=options.batches, main=main, workers=workers, pss=pss)


def stragglers(peer, options):
    check = verify(peer, options, Stragglers(CHECKED["stragglers"] * options.batch_size))
    count = options.batches * options.batch_size
    loader = peer.open(Stragglers(count), options, options.shuffle)
    seconds = []
    for _ in range(options.epochs):
        called = time.perf_counter()
        iterator = iter(loader)
        batches = 0
        for batch in iterator:
            ends(peer.array_of(batch))
            batches += 1
        seconds.append(time.perf_counter() - called)
        peer.close(iterator)
        assert batches == options.batches, f"{batches} of {options.batches} batches"
    ideal = sum(map(straggler_seconds, range(count))) / max(1, options.workers)
    taken = spread(seconds)
    peer.line(
        options,
        batches=options.batches,
        seconds=taken,
        ideal_seconds=ideal,
        of_ideal=ideal / taken["median"],
        check=check,
    )


WORKLOADS = {
    "overhead": overhead,
    "bandwidth": bandwidth,
    "tokens": tokens,
    "images": images,
    "start": start,
    "memory": memory,
    "stragglers": stragglers,
    "shutdown": shutdown,
}
