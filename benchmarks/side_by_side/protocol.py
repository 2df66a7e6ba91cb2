"""A simulation of an epoch: main and its workers behave as in `loader-core/src/engine/coordinator/`, but do no work.

Main is a single server: it receives a report, returns the next batch in order, and sends the next task. Tasks go to the
workers in strict turns, up to `prefetch_factor` per worker. Batches are returned in order. When main has waited for a
millisecond, tasks that wait behind another one move to workers that have nothing to do. Times are in microseconds. The
same arguments give the same result.
"""

import dataclasses
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

DEFAULT_PREFETCH_FACTOR = 2
MOVE_AFTER = 1000.0


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a batch."""

    main: float  # processor time of main
    work: Callable[[int], float]  # time of a worker for the batch with this number, without copies
    bytes: float = 0.0  # bytes that a worker copies
    core_rate: float = math.inf  # bytes per microsecond that one core copies
    memory_rate: float = math.inf  # bytes per microsecond that all cores together copy
    sleeps: bool = False  # True if workers sleep instead of computing


@dataclasses.dataclass(frozen=True)
class Outcome:
    returned: list[float]  # the time at which the user got each batch
    main_busy: float  # fraction of the time from `since` on
    workers_busy: float  # the same, mean of all workers
    memory_busy: float  # fraction of the bytes that memory could have copied in that time

    def between(self, first: int, last: int) -> float:
        """Returns the time per batch between two batches."""
        return (self.returned[last] - self.returned[first]) / (last - first)


class Sharing:
    """Jobs that all progress at the same rate, which may change at any time. `done` is the work that a job would have
    done since the start of the simulation."""

    def __init__(self):
        self.jobs: list[tuple[float, int, Callable[[], None]]] = []
        self.done = 0.0
        self.rate = 1.0
        self.order = itertools.count()

    def add(self, work: float, then: Callable[[], None]) -> None:
        heapq.heappush(self.jobs, (self.done + work, next(self.order), then))

    def until_next(self) -> float:
        return max(self.jobs[0][0] - self.done, 0.0) / self.rate if self.jobs else math.inf


class Machine:
    """Processors, memory and a clock."""

    def __init__(self, cores: float, core_rate: float, memory_rate: float):
        self.cores, self.core_rate, self.memory_rate = cores, core_rate, memory_rate
        self.now = 0.0
        self.computing, self.copying, self.sleeping = Sharing(), Sharing(), Sharing()

    def step(self) -> bool:
        """Advances the clock to the end of the next job. Returns False if there is no job."""
        running = len(self.computing.jobs) + len(self.copying.jobs)
        self.computing.rate = min(1.0, self.cores / running) if running else 1.0
        if self.copying.jobs:
            of_memory = self.memory_rate / len(self.copying.jobs)
            self.copying.rate = min(self.core_rate * self.computing.rate, of_memory)
        kinds = (self.computing, self.copying, self.sleeping)
        waits = [kind.until_next() for kind in kinds]
        wait = min(waits)
        if wait == math.inf:
            return False
        self.now += wait
        for kind in kinds:
            kind.done += wait * kind.rate
        first = kinds[waits.index(wait)]
        # Sums of many small steps are not exact, so `done` is set to the end of this job.
        first.done, _, then = heapq.heappop(first.jobs)
        then()
        return True


class Epoch:
    """The state of main and of its workers."""

    def __init__(self, costs: Costs, workers: int, batches: int, prefetch_factor: int, cores: float):
        self.costs, self.batches = costs, batches
        self.machine = Machine(cores, costs.core_rate, costs.memory_rate)
        self.limit = workers * prefetch_factor
        self.queues: list[deque[int]] = [deque() for _ in range(workers)]
        self.current: list[int | None] = [None] * workers
        # The next three lists are indexed by the number of the task.
        self.worker_of: list[int] = []
        self.begun: list[bool] = []
        self.arrived: list[bool] = []
        self.reports: deque[int] = deque()
        self.returned: list[float] = []
        self.main_works = False
        # Time at which main has waited long enough for the current batch to move tasks.
        self.move_at: float | None = None
        self.main_busy = self.workers_busy = self.copied = 0.0

    def run(self, since: int, until: int) -> Outcome:
        """Runs until `until` batches are returned. Measures from the time at which `since` batches were returned."""
        self.dispatch()
        self.main_goes_on()
        while len(self.returned) < since:
            self.step()
        start, self.main_busy, self.workers_busy, self.copied = self.machine.now, 0.0, 0.0, 0.0
        while len(self.returned) < until:
            self.step()
        whole = self.machine.now - start
        memory_busy = self.copied / (self.costs.memory_rate * whole)
        return Outcome(
            self.returned, self.main_busy / whole, self.workers_busy / whole / len(self.queues), memory_busy
        )

    def step(self) -> None:
        before = self.machine.now
        main_works, working = self.main_works, sum(task is not None for task in self.current)
        if not self.machine.step():
            raise RuntimeError("nothing goes on, and batches are missing")
        passed = self.machine.now - before
        self.main_busy += main_works * passed
        self.workers_busy += working * passed

    def dispatch(self) -> None:
        while len(self.worker_of) < min(self.batches, len(self.returned) + self.limit):
            number = len(self.worker_of)
            worker = number % len(self.queues)
            self.worker_of.append(worker)
            self.begun.append(False)
            self.arrived.append(False)
            self.give(worker, number)

    def give(self, worker: int, number: int) -> None:
        self.queues[worker].append(number)
        self.worker_goes_on(worker)

    def worker_goes_on(self, worker: int) -> None:
        if self.current[worker] is not None or not self.queues[worker]:
            return
        number = self.current[worker] = self.queues[worker].popleft()
        self.begun[number] = True
        kind = self.machine.sleeping if self.costs.sleeps else self.machine.computing
        kind.add(self.costs.work(number), lambda: self.copy(worker, number))

    def copy(self, worker: int, number: int) -> None:
        if self.costs.bytes:
            self.machine.copying.add(self.costs.bytes, lambda: self.report(worker, number))
        else:
            self.report(worker, number)

    def report(self, worker: int, number: int) -> None:
        self.copied += self.costs.bytes
        self.current[worker] = None
        self.reports.append(number)
        self.worker_goes_on(worker)
        self.main_goes_on()

    def main_goes_on(self) -> None:
        """Starts the next step of main, if it is idle. Half of its cost is to receive, half is to return and send."""
        if self.main_works or len(self.returned) == self.batches:
            return
        if self.arrived[len(self.returned)]:
            self.main_does(self.hand_on)
            return
        if self.move_at is None:
            self.move_at = self.machine.now + MOVE_AFTER
            self.machine.sleeping.add(MOVE_AFTER, self.main_has_waited)
        self.main_has_waited()
        if self.reports:
            number = self.reports.popleft()
            self.main_does(lambda: self.receive(number))

    def main_does(self, then: Callable[[], None]) -> None:
        self.main_works = True
        self.machine.computing.add(self.costs.main / 2, then)

    def receive(self, number: int) -> None:
        self.main_works = False
        self.arrived[number] = True
        self.main_goes_on()

    def hand_on(self) -> None:
        self.main_works = False
        self.move_at = None
        self.returned.append(self.machine.now)
        self.dispatch()
        self.main_goes_on()

    def main_has_waited(self) -> None:
        """Moves tasks if main still waits for the same batch. Alarms that were set for an earlier batch do nothing."""
        if self.main_works or self.move_at is None or self.machine.now < self.move_at:
            return
        waiting = [number for number in range(len(self.returned), len(self.worker_of)) if not self.arrived[number]]
        busy, behind = set(), []
        for number in waiting:
            worker = self.worker_of[number]
            if worker in busy and not self.begun[number]:
                behind.append(number)
            busy.add(worker)
        idle = (worker for worker in range(len(self.queues)) if worker not in busy)
        for worker, number in zip(idle, behind):
            self.queues[self.worker_of[number]].remove(number)
            self.worker_of[number] = worker
            self.give(worker, number)


def simulate(
    costs: Costs,
    workers: int,
    batches: int,
    prefetch_factor: int = DEFAULT_PREFETCH_FACTOR,
    cores: float = math.inf,
    since: int = 0,
    until: int | None = None,
) -> Outcome:
    """Simulates an epoch of `batches`, or its part until `until` are returned. Main and its workers share `cores`."""
    return Epoch(costs, workers, batches, prefetch_factor, cores).run(since, batches if until is None else until)


def steady(costs: Costs, workers: int, prefetch_factor: int = DEFAULT_PREFETCH_FACTOR) -> tuple[float, Outcome]:
    """Returns the batches per second of an endless epoch, with a core for each process."""
    # Equal workers answer in waves, so only whole waves are counted.
    waves = max(40, math.ceil(2000 / workers))
    first, last = workers * (waves // 4), workers * waves
    endless = last + 1 + workers * prefetch_factor
    outcome = simulate(costs, workers, endless, prefetch_factor, since=first + 1, until=last + 1)
    return 1e6 / outcome.between(first, last), outcome


def bound(costs: Costs, workers: int, mean_work: float) -> float:
    """Returns the batches per second that no schedule can exceed."""
    rates = [workers / (mean_work + costs.bytes / costs.core_rate)]
    rates += [1 / costs.main] if costs.main else []
    rates += [costs.memory_rate / costs.bytes] if costs.bytes else []
    return 1e6 * min(rates)
