"""The plan: the workloads, their options, the sides that take part, and the figures that are taken from their lines."""

import dataclasses
import json
from collections.abc import Callable, Iterator

OURS = "ours"
RUST = "rust"  # this loader in a program in Rust, where OURS is the Python package
STANDARD = "pytorch"
DECODER = "decoder"  # the library that decodes a format, without a loader: its ratio is the share of its speed
LARGE_BATCH = "batches of 38.5 MB of f32"
MEMCPY = f"{LARGE_BATCH}, memcpy without a loader"
ROWS = 256  # rows per batch of each format but tokens, on every side
# The file of each format, and the number of batches in it.
FILES = {
    "parquet": ("rows.parquet", 500),
    "arrow": ("rows.arrow", 500),
    "json-lines": ("rows.jsonl", 200),
    "csv": ("rows.csv", 500),
    "tar": ("samples.tar", 80),
    "tokens": ("tokens.u16", 1000),
}
PHOTO_ARCHIVES = "photo-archives/{0..3}.tar"  # each has a whole number of batches, so that no side drops the last one
PHOTO_BATCHES = 32  # of 64 photographs, in all archives
IMAGE_SIDES = (OURS, "python-rust", "torchvision", "pillow", "grain", "tf.data", "spdl", "dataloader-rs")
PYTHON_SIDES = ("grain", "spdl")  # beside the Python package and PyTorch, where the dataset is the same
PARQUET_SIDES = (OURS, STANDARD, "pytorch-batches", "hf")
ROW_SIDES = (OURS, STANDARD, "hf")
BURN_SIDES = (OURS, "burn")
CANDLE_SIDES = (OURS, "loop", "thread")
STEP_MS = 100  # a step of training that takes longer than two workers need for a batch of photographs
SLOW_BATCH_SIZE = 16  # default of `stragglers`, on every side


class NoFigure(Exception):
    """Why a line does not have the figure."""


@dataclasses.dataclass
class Row:
    """One row of a table, with a figure of each side."""

    title: str
    unit: str
    figure: Callable[[dict], float]
    more_is_better: bool = False
    # False if the figure should be zero, so that a ratio means nothing.
    compare: bool = True
    # The name of the row in the overview.
    overview: str | None = None
    # The name of a plot, and the label of the row in it.
    plot: tuple[str, str | int] | None = None
    # The title of a row of this loader with the same work without a loader, or without what this row measures.
    bound: str | None = None

    def labels(self) -> dict:
        """Returns the title, and the name of the row in plots and other rows."""
        further = {name: value for name in ("overview", "plot", "bound") if (value := getattr(self, name))}
        return {"title": self.title, **further}


@dataclasses.dataclass
class Case:
    """One workload with options. Each side runs it in one process per round."""

    workload: str  # the table and the file of results to which the case belongs
    options: list[str]
    rows: list[Row]
    command: str | None = None  # the command, if it is not the name of the workload
    # Further options of this loader and of the peers. Peers have shorter epochs; a slow one takes a second or two.
    ours: list[str] = dataclasses.field(default_factory=list)
    peers: list[str] = dataclasses.field(default_factory=list)
    sides: tuple[str, ...] | None = None  # None: all
    counted: bool = False  # True: this loader runs the program that counts allocations
    needs: str | None = None  # the data that the case needs, see `data`
    program: str | None = None  # the framework or language, if this loader runs in the program of its peer

    def arguments(self) -> dict:
        """Returns what the programs were started with. Two cases of a workload may have the same options."""
        return {"command": self.command or self.workload, "options": self.options, "ours": self.ours, "peers": self.peers}


def identity(arguments: dict) -> str:
    """Returns what a case and its stored result have in common, and no other case of the workload."""
    return json.dumps([arguments[name] for name in ("command", "options", "ours", "peers")])


def median_of(name: str) -> Callable[[dict], float]:
    return lambda line: line[name]["median"]


def worst_private(line: dict) -> float:
    if not line["workers"]:
        raise NoFigure("no worker processes")
    return max(worker["private"] for worker in line["workers"]) / 1e6


def faults_per_batch(line: dict) -> float:
    return (line["main_faults"] + sum(line["worker_faults"])) / line["batches"]


def count(workers: int) -> str:
    return "in process" if workers == 0 else "1 worker" if workers == 1 else f"{workers} workers"


def plan() -> Iterator[Case]:
    yield from overhead()
    yield from bandwidth()
    yield from tokens()
    yield from formats()
    yield from format_memory()
    yield from images()
    yield from tar_images()
    yield from cached_images()
    yield from start()
    yield from memory()
    yield from stragglers()
    yield from shutdown()
    yield from steady()
    yield from resume()
    yield from killed()
    yield from shutdown_faults()
    yield from trace()
    yield from burn()
    yield from candle()
    yield from python()


def overhead() -> Iterator[Case]:
    per_batch = median_of("us_per_batch")

    peers = ["--batches", "1000"]  # these take the slowest peer a second
    for workers in (0, 1, 2, 4):
        overview = "small batches" if workers == 1 else None
        title = f"batches of 64 integers, {count(workers)}"
        row = Row(title, "us", per_batch, overview=overview, plot=("overhead", workers))
        yield Case("overhead", ["--workers", str(workers)], [row], peers=peers)
    # `scaling` needs the cost of main with many workers. Peers are left out, because they would take long to start.
    for workers in (8, 16, 32, 64, 128):
        row = Row(f"batches of 64 integers, {count(workers)}", "us", per_batch)
        yield Case("overhead", ["--workers", str(workers)], [row], ours=["--epochs", "2"], sides=(OURS,))
    row = Row("batches of 64 integers, shuffled, 1 worker", "us", per_batch)
    yield Case("overhead", ["--workers", "1", "--shuffle"], [row], peers=peers, sides=(OURS, STANDARD))
    for workers in (0, 1, 2, 4):
        row = Row(f"batches of 1 integer, {count(workers)}", "us", per_batch)
        sides = None if workers == 1 else (OURS, STANDARD)
        options = ["--workers", str(workers), "--batch-size", "1"]
        yield Case("overhead", options, [row], peers=peers, sides=sides)


def bandwidth() -> Iterator[Case]:
    per_batch = median_of("us_per_batch")
    ours, peers = ["--epochs", "3"], ["--batches", "40", "--epochs", "2"]

    def row(title: str, workers: int, overview: str | None = None, bound: str | None = None) -> Row:
        in_plots = {"overview": overview, "plot": ("bandwidth", title)} if workers == 1 else {}
        return Row(f"{title}, {count(workers)}", "us", per_batch, bound=bound, **in_plots)

    for workers in (0, 1, 2):
        large = row(LARGE_BATCH, workers, "38.5 MB batches", MEMCPY)
        yield Case("bandwidth", ["--workers", str(workers)], [large], ours=ours, peers=peers)
    pages = Row(f"{LARGE_BATCH}, every page read, 1 worker", "us", per_batch, bound=MEMCPY)
    options = ["--workers", "1", "--read", "pages"]
    yield Case("bandwidth", options, [pages], ours=ours, peers=peers, sides=(OURS, STANDARD))
    copies = [
        Row(MEMCPY, "us", per_batch, compare=False),
        Row(f"{MEMCPY}, source is another batch", "us", median_of("whole_us_per_batch"), compare=False),
    ]
    yield Case("bandwidth", [], copies, command="memcpy", sides=(OURS,))
    for workers in (0, 1, 2):
        sides = None if workers == 1 else (OURS, STANDARD)
        options = ["--workers", str(workers), "--dtype", "u8"]
        bytes_ = row("batches of 9.6 MB of u8", workers, "9.6 MB batches")
        yield Case("bandwidth", options, [bytes_], ours=ours, peers=["--batches", "100", "--epochs", "2"], sides=sides)
    for sample, title, overview in (
        ("row", "batches of 1 MiB of f32", "1 MiB batches"),
        ("short-row", "batches of 64 KiB of f32", "64 KiB batches"),
    ):
        for workers in (1, 2):
            sides = None if workers == 1 else (OURS, STANDARD)
            options = ["--workers", str(workers), "--sample", sample]
            yield Case("bandwidth", options, [row(title, workers, overview)], peers=["--epochs", "2"], sides=sides)


def tokens() -> Iterator[Case]:
    for workers in (1, 2):
        overview = "tokens" if workers == 2 else None
        row = Row(f"batches of 16 x 2048 tokens, {count(workers)}", "us", median_of("us_per_batch"), overview=overview)
        options = ["--workers", str(workers), "--shuffle", "--file", ".data/tokens.u16", "--batches", "1000"]
        yield Case("tokens", options, [row], peers=["--epochs", "2"], needs="tokens")


def formats() -> Iterator[Case]:
    yield from of_format("parquet", f"{ROWS} rows of Parquet", PARQUET_SIDES)
    yield from of_format("arrow", f"{ROWS} rows of Arrow, shuffled", ROW_SIDES, ["--shuffle"], has_decoder=False)
    yield from of_format("json-lines", f"{ROWS} rows of JSON lines", ROW_SIDES)
    yield from of_format("json-lines", f"{ROWS} rows of JSON lines as records", (OURS, STANDARD), ["--records"])
    yield from of_format("csv", f"{ROWS} rows of CSV", ROW_SIDES)
    yield from of_format("csv", f"{ROWS} rows of CSV as records", (OURS, STANDARD), ["--records"])
    yield from of_format("tar", f"{ROWS} samples of a tar archive", (OURS, "webdataset"))
    yield from of_format("token-files", "16 x 2048 tokens, shuffled", (OURS, STANDARD), ["--shuffle"], "tokens")


def format_memory() -> Iterator[Case]:
    for command, what in (
        ("parquet", "Parquet, row groups of 2.7 MB"),
        ("json-lines", "JSON lines"),
        ("csv", "CSV"),
        ("tar", "a tar archive"),
    ):
        row = Row(f"private memory of a worker that reads {what}", "MB", worst_private)
        file, batches = FILES[command]
        options = ["--workers", "1", "--file", f".data/{file}", "--batches", str(batches), "--memory"]
        yield Case("format-memory", options, [row], command, sides=(OURS,), needs=command)


def of_format(
    workload: str,
    title: str,
    sides: tuple[str, ...],
    further: list[str] | None = None,
    command: str | None = None,
    has_decoder: bool = True,
) -> Iterator[Case]:
    """Returns the cases of one format: without and with a worker, beside the library that decodes it."""
    command = command or workload
    file, batches = FILES[command]
    options = ["--file", f".data/{file}", "--batches", str(batches), *(further or [])]
    if has_decoder:
        sides = (*sides, DECODER)
    ours, peers = ["--epochs", "10"], ["--epochs", "3" if command == "tokens" else "1"]
    for workers in (0, 1):
        rows = [
            Row(f"batches of {title}, {count(workers)}", "us", median_of("us_per_batch")),
            Row(f"processor time, {title}, {count(workers)}", "us", lambda line: line["cpu_us_per_batch"]),
        ]
        with_workers = ["--workers", str(workers), *options]
        yield Case(workload, with_workers, rows, command, ours, peers, sides, needs=command)


def images() -> Iterator[Case]:
    rate = median_of("images_per_second")
    for workers in (0, 1, 2):
        overview = "images" if workers == 2 else None
        title, plot = f"images per second, {count(workers)}", ("images", count(workers))
        row = Row(title, "", rate, more_is_better=True, overview=overview, plot=plot)
        processor = Row(f"processor time per image, {count(workers)}", "ms", lambda line: line["cpu_ms_per_image"])
        options = ["--workers", str(workers), "--folder", ".data/images", "--batches", "20", "--epochs", "1"]
        sides = (OURS, "python-rust", "torchvision", "pillow") if workers == 0 else IMAGE_SIDES
        yield Case("images", options, [row, processor], sides=sides, needs="images")


def of_images(workload: str, further: list[str], sides: tuple[str, ...], figures: list[Row]) -> Iterator[Case]:
    """Returns the cases of photographs with 0, 1 and 2 workers. `figures` are rows without the number of workers."""
    for workers in (0, 1, 2):
        rows = [dataclasses.replace(row, title=f"{row.title}, {count(workers)}") for row in figures]
        options = ["--workers", str(workers), *further]
        yield Case(workload, options, rows, sides=sides, needs=workload)


def tar_images() -> Iterator[Case]:
    rows = [
        Row("images per second from tar archives", "", median_of("images_per_second"), more_is_better=True),
        Row("processor time per image from tar archives", "ms", lambda line: line["cpu_ms_per_image"]),
    ]
    further = ["--file", f".data/{PHOTO_ARCHIVES}", "--batches", str(PHOTO_BATCHES), "--epochs", "1"]
    yield from of_images("tar-images", further, (OURS, "webdataset"), rows)


def filling(line: dict) -> float:
    if "filling_images_per_second" not in line:
        raise NoFigure("it keeps no images")
    return line["filling_images_per_second"]


def cached_images() -> Iterator[Case]:
    rows = [
        Row("images per second from the cache", "", median_of("images_per_second"), more_is_better=True),
        Row("processor time per image from the cache", "ms", lambda line: line["cpu_ms_per_image"]),
        Row("images per second of the epoch that fills the cache", "", filling, more_is_better=True),
    ]
    further = ["--folder", ".data/images", "--batches", "31", "--epochs", "3"]
    yield from of_images("cached-images", further, (OURS, "torchvision", "memmap", "tf.data"), rows)


def start() -> Iterator[Case]:
    for dataset, what in (("trivial", "trivial dataset"), ("names", "a million file names")):
        for workers in (1, 2, 4, 8):
            overview = "first batch" if (dataset, workers) == ("names", 4) else None
            plot = ("start", workers) if dataset == "names" else None
            title = f"time to the first batch, {what}, {count(workers)}"
            row = Row(title, "ms", median_of("first_batch_ms"), overview=overview, plot=plot)
            sides = None if dataset == "names" and workers in (1, 4) else (OURS, STANDARD)
            options = ["--workers", str(workers), "--dataset", dataset]
            yield Case("start", options, [row], ours=["--epochs", "20"], peers=["--epochs", "3"], sides=sides)


def memory() -> Iterator[Case]:
    datasets = (("trivial", "trivial dataset"), ("names", "a million file names"), ("memory", "an array of 1 GB"))
    for dataset, what in datasets:
        for workers in (1, 4):
            overview = "private memory" if (dataset, workers) == ("names", 4) else None
            title = f"private memory per worker, {what}, {count(workers)}"
            plot = ("memory", f"{what}, {count(workers)}")
            rows = [
                Row(title, "MB", worst_private, overview=overview, plot=plot),
                Row(f"all processes together, {what}, {count(workers)}", "MB", lambda line: line["pss"] / 1e6),
            ]
            sides = None if workers == 4 else (OURS, STANDARD)
            options = ["--workers", str(workers), "--dataset", dataset, "--shuffle"]
            yield Case("memory", options, rows, sides=sides)


def straggler_ms(index: int) -> int:
    """How long a sample of `stragglers` takes, as `Stragglers` in `datasets.rs` says."""
    return 200 if index * 2654435761 % 2**32 % 100 == 7 else 4


def stragglers() -> Iterator[Case]:
    workers, batches = 4, 100
    ideal = sum(map(straggler_ms, range(batches * SLOW_BATCH_SIZE))) / workers
    for prefetch in (2, 4):
        title = f"an epoch with slow samples, {count(workers)}, prefetch {prefetch} (ideal: {ideal:,.0f} ms)"
        overview = "slow samples" if prefetch == 2 else None
        row = Row(title, "ms", lambda line: line["seconds"]["median"] * 1e3, overview=overview)
        options = ["--workers", str(workers), "--prefetch-factor", str(prefetch), "--batches", str(batches)]
        yield Case("stragglers", options, [row])


def shutdown() -> Iterator[Case]:
    for workers in (1, 4, 8):
        overview = "shutdown" if workers == 4 else None
        row = Row(f"until all workers have ended, {count(workers)}", "ms", median_of("drop_ms"), overview=overview)
        sides = None if workers == 4 else (OURS, STANDARD)
        yield Case("shutdown", ["--workers", str(workers)], [row], ours=["--epochs", "10"], sides=sides)


def steady() -> Iterator[Case]:
    for workers in (1, 2):
        row = Row(f"page faults per batch of 38.5 MB, {count(workers)}", "", faults_per_batch, compare=False)
        yield Case("steady", ["--workers", str(workers)], [row], sides=(OURS, STANDARD), counted=True)


def resume() -> Iterator[Case]:
    for workers in (0, 2):
        overview = "resume at batch 10,000" if workers == 2 else None
        title = f"time from the state to the next batch, {count(workers)}"
        rows = [
            Row(title, "ms", median_of("resume_ms"), overview=overview),
            Row(f"time to take the state, {count(workers)}", "us", median_of("save_us")),
            Row(f"size of the state as JSON, {count(workers)}", "bytes", lambda line: line["state_bytes"]),
        ]
        options = ["--workers", str(workers), "--shuffle"]
        yield Case("resume", options, rows, peers=["--epochs", "3"], sides=(OURS, STANDARD))


def killed() -> Iterator[Case]:
    workers = 2
    title = f"recovery: longest gap between batches minus the usual gap, {count(workers)}"
    rows = [
        Row(title, "ms", median_of("recovery_ms"), overview="worker killed"),
        Row("the same without a kill", "ms", median_of("undisturbed_ms"), compare=False),
        Row("additional time of the epoch", "ms", median_of("epoch_longer_ms"), compare=False),
        Row("batches that the iterator does not return, of 200", "", median_of("lost_batches"), compare=False),
    ]
    options = ["--workers", str(workers), "--batches", "200"]
    # PyTorch's epochs take longer, and each kill needs three of them. In three rounds this still gives 20 kills.
    yield Case("killed", options, rows, ours=["--epochs", "20"], peers=["--epochs", "7"], sides=(OURS, STANDARD))


def until_gone(line: dict) -> float:
    if line.get("left"):
        seconds = line["returned_ms"]["median"] / 1e3
        raise NoFigure(f"the drop returns after {seconds:.1f} s and leaves a worker")
    return line["drop_ms"]["median"]


def shutdown_faults() -> Iterator[Case]:
    workers = 2
    faults = {
        "none": "no fault",
        "stuck": "one in a sample of 30 s",
        "stopped": "one stopped",
        "killed": "one just killed",
        "blocked": "one in a sample of 30 s with all signals blocked",
    }
    for fault, what in faults.items():
        row = Row(f"until all workers have ended, {count(workers)}, {what}", "ms", until_gone)
        is_quick = fault in ("none", "killed")
        ours, peers = (["--epochs", "20"], ["--epochs", "5"]) if is_quick else (["--epochs", "1"], ["--epochs", "1"])
        options = ["--workers", str(workers), "--fault", fault]
        yield Case(
            "shutdown-faults", options, [row], command="shutdown", ours=ours, peers=peers, sides=(OURS, STANDARD)
        )


def trace() -> Iterator[Case]:
    """The cost of a trace that the loader records."""
    for command, what, unit, figure, further in (
        ("overhead", "time per batch of 64 integers", "us", median_of("us_per_batch"), []),
        ("images", "processor time per photograph", "ms", lambda line: line["cpu_ms_per_image"], ["--folder", ".data/images", "--batches", "40"]),
    ):
        title = f"{what}, {count(2)}, no trace"
        with_trace = f"{what}, {count(2)}, with a trace"
        for of_trace, row in (
            ([], Row(title, unit, figure)),
            (["--trace", ".data/trace.json"], Row(with_trace, unit, figure, bound=title)),
        ):
            yield Case("trace", ["--workers", "2", *further, *of_trace], [row], command, sides=(OURS,), needs="images")


def burn() -> Iterator[Case]:
    """This loader beside burn's, both behind burn's trait for loaders: with the same dataset and `Batcher`, with the same
    decoder and each in its usual way, and as each comes."""
    kinds = (("images", "photographs", ["--folder", ".data/images"], "images"), ("rows", "rows of 64 floats", [], None))
    ways = (("", [], kinds), (", same decoder", ["--same-decoder"], kinds[:1]), (", as each comes", ["--as-it-comes"], kinds))
    for how, flag, kinds_of_way in ways:
        for command, what, further, needs in kinds_of_way:
            for workers in (1, 2):
                rows = [
                    Row(f"{what} per second{how}, {count(workers)}", "", median_of("samples_per_second"), True),
                    Row(f"first batch of {what}{how}, {count(workers)}", "ms", lambda line: line["first_batch_ms"]),
                ]
                options = ["--workers", str(workers), *further, *flag]
                yield Case("burn", options, rows, command, sides=BURN_SIDES, needs=needs, program="burn")
    for step in (0, STEP_MS):
        during = f"the program takes {step} ms per batch" if step else "the program takes each batch at once"
        for workers in (1, 2):
            title = f"peak memory of all processes, photographs, {during}, {count(workers)}"
            row = Row(title, "MB", lambda line: line["pss"] / 1e6)
            options = ["--workers", str(workers), "--folder", ".data/images", "--step-ms", str(step)]
            yield Case("burn", options, [row], "memory", sides=BURN_SIDES, needs="images", program="burn")


def candle() -> Iterator[Case]:
    """This loader beside the usual loops of programs with candle, which have no workers."""
    kinds = (("digits", "digits", [], None), ("photographs", "photographs", ["--folder", ".data/images"], "images"))
    for command, what, further, needs in kinds:
        for workers in (0, 1, 2):
            rows = [
                Row(f"{what} per second, {count(workers)}", "", lambda line: line["samples_per_second"], True),
                Row(f"first batch of {what}, {count(workers)}", "ms", lambda line: line["first_batch_ms"]),
                Row(f"memory of all processes, {what}, {count(workers)}", "MB", lambda line: line["pss_mb"]),
            ]
            options = ["--workers", str(workers), *further]
            sides = CANDLE_SIDES if workers == 0 else (*CANDLE_SIDES, "threads")
            yield Case("candle", options, rows, command, sides=sides, needs=needs, program="candle")


def python() -> Iterator[Case]:
    """The Python package beside PyTorch, with the same dataset and options in the same script, and beside other packages."""

    def case(command: str, options: list[str], row: Row, further: list[str]) -> Case:
        return Case("python", options, [row], command, further, further, (OURS, STANDARD, *PYTHON_SIDES), program="python")

    per_batch = median_of("us_per_batch")
    for workers in (0, 1, 2):
        row = Row(f"batches of 64 integers, {count(workers)}", "us", per_batch)
        yield case("overhead", ["--workers", str(workers)], row, ["--batches", "1000"])
    for workers in (1, 2):
        row = Row(f"{LARGE_BATCH}, {count(workers)}", "us", per_batch)
        yield case("bandwidth", ["--workers", str(workers)], row, ["--batches", "40", "--epochs", "2"])
    started = [(dataset, what, 0, workers, method)
               for dataset, what in (("trivial", "trivial dataset"), ("names", "a million file names"))
               for workers in (1, 2, 4)
               for method in ("fork", "forkserver")]
    # The time of a fork grows with the memory of the process that forks.
    started.append(("trivial", "trivial dataset, main holds 8 GB", 8, 4, "fork"))
    for dataset, what, resident, workers, method in started:
        of = f"{what}, {count(workers)}, {method}"
        rows = [
            Row(f"time to the first batch of a later epoch, {of}", "ms", median_of("first_batch_ms")),
            Row(f"time to the first batch of the program, {of}", "ms", lambda line: line["cold_ms"]),
            Row(f"duration of `iter`, {of}", "ms", median_of("iter_ms")),
        ]
        options = ["--workers", str(workers), "--dataset", dataset, "--start-method", method, "--resident-gb", str(resident)]
        further = ["--epochs", "5"]
        yield Case("python", options, rows, "start", further, further, (OURS, STANDARD), program="python")
    for method in ("fork", "forkserver"):
        of = f"an array of 1 GB, {count(4)}, {method}"
        rows = [
            Row(f"private memory per worker, {of}", "MB", worst_private),
            Row(f"all processes together, {of}", "MB", lambda line: line["pss"] / 1e6),
        ]
        options = ["--workers", "4", "--dataset", "memory", "--shuffle", "--start-method", method]
        yield Case("python", options, rows, "memory", sides=(OURS, STANDARD), program="python")
    for workers in (1, 2):
        row = Row(f"photographs per second, {count(workers)}", "", median_of("images_per_second"), more_is_better=True)
        options = ["--workers", str(workers), "--folder", ".data/images", "--batches", "20", "--epochs", "1"]
        sides = (OURS, RUST, STANDARD, *PYTHON_SIDES)
        yield Case("python", options, [row], "images", ["--pipeline", "rust"], sides=sides, needs="images", program="python")
    for workers in (1, 2):
        how = f"{count(workers)}, torchvision's ImageFolder with PyTorch"
        rows = [
            Row(f"loading photographs per second, {how}", "", median_of("loading_images_per_second"), more_is_better=True),
            Row(f"training with photographs per second, {how}", "", median_of("training_images_per_second"), more_is_better=True),
        ]
        options = ["--workers", str(workers), "--folder", ".data/images", "--epochs", "3"]
        yield Case("python", options, rows, "train", sides=(OURS, STANDARD), needs="images", program="python")
    for found, what in ((resume(), "resume"), (killed(), "worker killed")):
        for of_rust in found:
            # The overview has the figures of the loader in Rust.
            rows = [dataclasses.replace(row, title=f"{what}: {row.title}", overview=None) for row in of_rust.rows]
            yield dataclasses.replace(
                of_rust,
                workload="python",
                rows=rows,
                command=of_rust.workload,
                ours=of_rust.peers,
                sides=(OURS, RUST, STANDARD),
                program="python",
            )
