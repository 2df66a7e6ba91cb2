"""Predicts the throughput with more cores than this machine has, by the simulation in `protocol.py` with the costs in
`results/`."""

import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Iterator

from side_by_side import svg, table
from side_by_side.cases import OURS, SLOW_BATCH_SIZE, straggler_ms
from side_by_side.protocol import Costs, Outcome, bound, simulate, steady
from side_by_side.results import RESULTS

START, END = "<!-- scaling: written by `run --scaling` -->", "<!-- end of scaling -->"
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
# The knee is the minimum number of workers that reaches this fraction of the highest throughput.
PLATEAU = 0.9
# A part of the machine that is busy for more than this fraction of the time is the bound.
FULL = 0.95
# The same as in `throughput.rs`.
WARM_UP_DIVISOR = 5
# Maximum number of simulated batches in a check. The measurements used more, but this is enough.
MAX_CHECKED = 4000
BATCH_SIZE = 64
IMAGE_ELEMENTS = BATCH_SIZE * 3 * 224 * 224
FLOAT_BYTES = 4
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7d6ab5", "#7f7f7f")


class NotMeasured(Exception):
    """Says what is missing in the results."""


@dataclasses.dataclass
class MainCost:
    """Main's processor time per batch of 64 integers, by the number of workers."""

    measured: dict[int, float]

    def __post_init__(self):
        # The measured time includes the time in which main looks for batches while it waits. The true cost does not
        # fall with more workers, so a smaller figure with more workers is closer to it.
        counts = sorted(self.measured)
        self.lowest = {at: min(self.measured[count] for count in counts if count >= at) for at in counts}

    def at(self, workers: int) -> float:
        """Interpolates linearly between two numbers of workers. Beyond the last one, returns the cost there."""
        below = max((count for count in self.lowest if count <= workers), default=min(self.lowest))
        above = min((count for count in self.lowest if count >= workers), default=max(self.lowest))
        if above <= below:
            return self.lowest[below]
        share = (workers - below) / (above - below)
        return self.lowest[below] + share * (self.lowest[above] - self.lowest[below])


@dataclasses.dataclass
class Workload:
    """A kind of batch, with its costs and its measurements."""

    title: str
    costs: Callable[[int], Costs]  # by the number of workers
    mean_work: float  # mean time of a worker per batch, without copies
    measured: list["Measured"] = dataclasses.field(default_factory=list)
    # True if the limit of memory was reached. Otherwise its rate is the highest that was measured.
    memory_reached: bool = False


@dataclasses.dataclass
class Measured:
    """A measurement with which the simulation is compared."""

    workers: int
    us_per_batch: float
    batches: int
    cores_used: float | None = None
    prefetch_factor: int = 2
    # True if one of the costs of the simulation comes from this measurement.
    fed: bool = False
    # True if it was measured from `iter()` to the end, instead of after a warm-up.
    whole: bool = False

    def predicted(self, workload: Workload, cores: int) -> float:
        batches = self.batches if self.whole else min(self.batches, MAX_CHECKED)
        outcome = simulate(workload.costs(self.workers), self.workers, batches, self.prefetch_factor, cores)
        if self.whole:
            return outcome.returned[-1] / batches
        return outcome.between(batches // WARM_UP_DIVISOR, batches - 1)


def write(stored: dict[str, dict]) -> None:
    try:
        found = list(workloads(stored))
    except NotMeasured as missing:
        sys.exit(f"{missing}; measure first")
    cores = stored["overhead"]["machine"]["cores"]
    result = {
        "machine": stored["overhead"]["machine"],
        "costs": [costs_of(workload) for workload in found],
        "predicted": [predict(workload) for workload in found],
        "checked": [check for workload in found for check in checks(workload, cores)],
    }
    (RESULTS / "scaling.json").write_text(json.dumps(result, indent=1) + "\n")
    text = markdown(result)
    (RESULTS / "scaling.md").write_text(text + "\n")
    table.put_into_readme(START, END, text)
    (RESULTS / "scaling.svg").write_text(plot(result["predicted"]))
    print(text)


def workloads(stored: dict[str, dict]) -> Iterator[Workload]:
    """Yields all workloads whose throughput was measured."""
    integers = {"batch_size": None, "shuffle": False}
    small = Runs(stored, "overhead", **integers)
    main = MainCost({workers: small.median(workers, "main_cpu_us_per_batch") for workers in small.counts()})
    yield copied("64 integers", small, main)
    yield copied("32,768 tokens", Runs(stored, "tokens"), main)
    images = {"read": "ends", "sample": "image"}
    yield copied("1 MiB of f32", Runs(stored, "bandwidth", sample="row"), main)
    yield from with_memory("9.6 MB of u8", Runs(stored, "bandwidth", dtype="u8", **images), main, IMAGE_ELEMENTS)
    large = Runs(stored, "bandwidth", dtype="f32", **images)
    yield from with_memory("38.5 MB of f32", large, main, IMAGE_ELEMENTS * FLOAT_BYTES)
    yield from photographs(Runs(stored, "images"), large, main)
    yield slow_samples(stored, main)


class Runs:
    """The lines of this loader for a workload with some options."""

    def __init__(self, stored: dict[str, dict], workload: str, **wanted):
        self.name = f"{workload} {wanted}"
        if workload not in stored:
            raise NotMeasured(f"no results of {workload}")
        self.lines: dict[int, list[dict]] = {}
        for case in stored[workload]["cases"]:
            for line in case["lines"][OURS]:
                options = line["options"]
                if options["workload"] == workload and all(options[name] == value for name, value in wanted.items()):
                    self.lines.setdefault(options["workers"], []).append(line)
        if 1 not in self.lines:
            raise NotMeasured(f"no results of {self.name} with one worker")

    def counts(self) -> list[int]:
        """Returns the numbers of workers, except 0."""
        return sorted(workers for workers in self.lines if workers)

    def median(self, workers: int, name: str) -> float:
        """Returns the median of a figure over the rounds. If the figure is a spread, uses its medians."""
        figures = [line.get(name) for line in self.lines[workers]]
        if None in figures:
            raise NotMeasured(f"no {name} in the results of {self.name}")
        return statistics.median(of["median"] if isinstance(of, dict) else of for of in figures)

    def least_main(self) -> tuple[int, float]:
        """Returns the number of workers with which main's processor time per batch was lowest, and that time. With
        other numbers main spent more time looking for batches."""
        least = min(self.counts(), key=lambda workers: self.median(workers, "main_cpu_us_per_batch"))
        return least, self.median(least, "main_cpu_us_per_batch")

    def measured(self, fed: tuple[int, ...]) -> list[Measured]:
        found = []
        for workers in self.counts():
            time = self.median(workers, "us_per_batch")
            used = self.median(workers, "main_cpu_us_per_batch") + self.median(workers, "worker_cpu_us_per_batch")
            batches = self.lines[workers][0]["batches"]
            found.append(Measured(workers, time, batches, used / time, fed=workers in fed))
        return found


def own_main(runs: Runs, main: MainCost) -> Callable[[int], float]:
    """Returns main's cost in a workload: the measured cost, plus what more workers add to the cost of a small batch."""
    workers, least = runs.least_main()
    return lambda count: max(least + main.at(count) - main.at(workers), main.at(count))


def copied(title: str, runs: Runs, main: MainCost) -> Workload:
    """Returns a workload whose slots stay in the caches of a core, so that copies are part of the work."""
    work, of_main = runs.median(1, "worker_cpu_us_per_batch"), own_main(runs, main)

    def costs(workers: int) -> Costs:
        return Costs(of_main(workers), lambda number: work)

    return Workload(title, costs, work, runs.measured(fed=(1,)))


def memory_rate(runs: Runs, size: int) -> tuple[float, int, bool]:
    """Returns the maximum bytes per microsecond that any number of workers copied, that number, and whether this is a
    limit of memory. It is a limit only if the rate did not grow in proportion to the number of workers."""
    rate, workers = max((size / runs.median(workers, "us_per_batch"), workers) for workers in runs.counts())
    return rate, workers, rate < PLATEAU * max(runs.counts()) * size / runs.median(1, "us_per_batch")


def with_memory(title: str, runs: Runs, main: MainCost, size: int) -> Iterator[Workload]:
    """Yields a workload whose only work is copying at the speed of memory, and the same without a limit of memory."""
    work, of_main = runs.median(1, "worker_cpu_us_per_batch"), own_main(runs, main)
    rate, fastest, reached = memory_rate(runs, size)

    def costs(most: float) -> Callable[[int], Costs]:
        return lambda workers: Costs(of_main(workers), lambda number: 0.0, size, size / work, most)

    yield Workload(title, costs(rate), 0.0, runs.measured(fed=(1, fastest)), reached)
    yield Workload(f"{title}, unlimited memory bandwidth", costs(float("inf")), 0.0)


def varied(work: float) -> Callable[[int], float]:
    """Varies the work by up to 10 %, evenly distributed and the same every time. Otherwise equal workers would compute
    and copy in step and all use memory at once; photographs differ, so that real workers are not in step."""
    golden = (5**0.5 - 1) / 2
    return lambda number: work * (0.9 + 0.2 * (number * golden % 1))


def photographs(runs: Runs, large: Runs, main: MainCost) -> Iterator[Workload]:
    """Yields photographs, which are decoded and then written like batches of 38.5 MB. All processor time counts as the
    workers'."""
    size = IMAGE_ELEMENTS * FLOAT_BYTES
    whole = runs.median(1, "cpu_ms_per_image") * 1e3 * BATCH_SIZE
    core_rate = size / large.median(1, "worker_cpu_us_per_batch")
    rate, _, reached = memory_rate(large, size)
    work = max(whole - size / core_rate, 0.0)

    def costs(most: float) -> Callable[[int], Costs]:
        return lambda workers: Costs(main.at(workers), varied(work), size, core_rate, most)

    measured = []
    for workers in runs.counts():
        time = 1e6 * BATCH_SIZE / runs.median(workers, "images_per_second")
        used = runs.median(workers, "cpu_ms_per_image") * 1e3 * BATCH_SIZE / time
        batches = runs.lines[workers][0]["check"]["batches"]
        measured.append(Measured(workers, time, batches, used, fed=workers == 1))
    yield Workload("64 photographs", costs(rate), work, measured, reached)
    yield Workload("64 photographs, unlimited memory bandwidth", costs(float("inf")), work)


def slow_batch(number: int) -> float:
    """Returns the time of a batch of slow samples, in microseconds."""
    samples = range(number * SLOW_BATCH_SIZE, (number + 1) * SLOW_BATCH_SIZE)
    return sum(map(straggler_ms, samples)) * 1e3


def slow_samples(stored: dict[str, dict], main: MainCost) -> Workload:
    """Returns the workload in which workers sleep, some longer than others. It checks only the distribution of tasks,
    not costs."""
    if "stragglers" not in stored:
        raise NotMeasured("no results of stragglers")
    measured = []
    for case in stored["stragglers"]["cases"]:
        lines = case["lines"][OURS]
        batches, options = lines[0]["batches"], lines[0]["options"]
        time = statistics.median(line["seconds"]["median"] for line in lines) * 1e6 / batches
        one = Measured(options["workers"], time, batches, prefetch_factor=options["prefetch_factor"], whole=True)
        measured.append(one)
    many = 100_000
    mean = sum(map(slow_batch, range(0, many, 100))) / (many / 100)

    def costs(workers: int) -> Costs:
        return Costs(main.at(workers), slow_batch, sleeps=True)

    return Workload("slow samples", costs, mean, measured)


def costs_of(workload: Workload) -> dict:
    """Returns the costs that the simulation uses."""
    one, many = workload.costs(1), workload.costs(COUNTS[-1])
    return {
        "title": workload.title,
        "main_us": {1: one.main, COUNTS[-1]: many.main},
        "worker_us": workload.mean_work + one.bytes / one.core_rate,
        "copying_us": one.bytes / one.core_rate,
        # JSON cannot express infinity.
        "memory_bytes_per_us": one.memory_rate if one.bytes and one.memory_rate < float("inf") else None,
        "memory_reached": workload.memory_reached,
    }


def predict(workload: Workload) -> dict:
    """Returns the batches per second by number of workers, the knee, and the bound with the most workers."""
    outcomes: dict[int, tuple[float, Outcome]] = {}

    def rate(workers: int) -> float:
        if workers not in outcomes:
            outcomes[workers] = steady(workload.costs(workers), workers)
        return outcomes[workers][0]

    rates = {workers: rate(workers) for workers in COUNTS}
    best = max(COUNTS, key=rate)
    knee = None
    if rates[best] < PLATEAU * best * rates[1] or best < COUNTS[-1]:
        # Up to the best number, more workers do not reduce the throughput, so a binary search finds the knee.
        below, knee = 0, best
        while knee - below > 1:
            middle = (below + knee) // 2
            below, knee = (below, middle) if rate(middle) >= PLATEAU * rates[best] else (middle, knee)
    bounds = {workers: bound(workload.costs(workers), workers, workload.mean_work) for workers in COUNTS}
    return {
        "title": workload.title,
        "batches_per_second": rates,
        "closed_form": bounds,
        "most": rates[best],
        "knee": knee,
        "bound": full(outcomes[COUNTS[-1]][1]),
        "best": best,
    }


def full(outcome: Outcome) -> str:
    """Returns what is fully used. Memory comes first, because workers that wait for memory are busy too."""
    if outcome.memory_busy >= FULL:
        return "memory"
    if outcome.main_busy >= FULL:
        return "main"
    return "workers" if outcome.workers_busy >= FULL else "turns"


def checks(workload: Workload, cores: int) -> Iterator[dict]:
    """Compares each measurement with a simulation on the same number of cores."""
    for one in workload.measured:
        predicted = one.predicted(workload, cores)
        yield {
            "title": workload.title,
            "workers": one.workers,
            "prefetch_factor": one.prefetch_factor,
            "fed": one.fed,
            "predicted_us": predicted,
            "measured_us": one.us_per_batch,
            "error": predicted / one.us_per_batch - 1,
            "cores_used": one.cores_used,
        }


def markdown(result: dict) -> str:
    number = table.number
    lines = ["Batches per second, simulated, with one core for main and one for each worker:", ""]
    counts = " | ".join(map(str, COUNTS))
    lines.append(f"| batch | {counts} | knee (workers) | bottleneck with {COUNTS[-1]} workers |")
    lines.append("|---" * (len(COUNTS) + 3) + "|")
    for row in result["predicted"]:
        cells = [row["title"], *(number(row["batches_per_second"][workers]) for workers in COUNTS)]
        cells.append(f"over {COUNTS[-1]}" if row["knee"] is None else str(row["knee"]))
        cells.append(row["bound"])
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Costs that the simulation uses, in microseconds per batch:", ""]
    lines.append(f"| batch | main, 1 worker | main, {COUNTS[-1]} workers | worker | of which copying | memory, GB/s |")
    lines.append("|---" * 6 + "|")
    for row in result["costs"]:
        memory = row["memory_bytes_per_us"]
        cells = [row["title"], number(row["main_us"][1]), number(row["main_us"][COUNTS[-1]]), number(row["worker_us"])]
        cells.append(number(row["copying_us"]) if row["copying_us"] else "")
        cells.append("" if memory is None else f"{'' if row['memory_reached'] else 'at least '}{number(memory / 1e3)}")
        lines.append("| " + " | ".join(cells) + " |")
    machine = result["machine"]
    cores = machine["cores"]
    lines += ["", f"The simulation with {cores} cores, compared with measurements on {cores} cores:", ""]
    lines.append("| batch | workers | simulated, us | measured, us | error | cores in use |")
    lines.append("|---" * 6 + "|")
    for row in result["checked"]:
        prefetch = f", prefetch {row['prefetch_factor']}" if row["cores_used"] is None else ""
        cells = [row["title"] + prefetch, f"{row['workers']}{' *' if row['fed'] else ''}"]
        cells += [number(row["predicted_us"]), number(row["measured_us"]), f"{round(100 * row['error']):+d}%"]
        cells.append(f"{row['cores_used']:.2f}" if row["cores_used"] is not None else "none: workers sleep")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "\\* A cost that the simulation uses comes from this measurement, so this row is a weaker check."]
    errors = [abs(row["error"]) for row in result["checked"] if not row["fed"]]
    if errors:
        text = f"In the {len(errors)} other rows the median error is {statistics.median(errors):.0%}, "
        lines.append(f"{text}the maximum {max(errors):.0%}.")
    lines += ["", f"{machine['processor']}, {cores} cores; {machine['date']}."]
    return "\n".join(lines)


def plot(predicted: list[dict]) -> str:
    """Plots one line per workload, except those without a limit of memory."""
    shown = [row for row in predicted if not row["title"].endswith("unlimited memory bandwidth")]
    series = [
        svg.Series(row["title"], colour, row["batches_per_second"]) for row, colour in zip(shown, COLOURS, strict=True)
    ]
    subtitle = "Simulated, with one core for main and one for each worker. Higher is better."
    axis = svg.Axis("batches per second, logarithmic scale")
    return svg.lines("Throughput with more cores", subtitle, axis, "workers", list(COUNTS), series)
