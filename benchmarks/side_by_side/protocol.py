"""A simulation of an epoch: main and its workers as `loader-core/src/iter/workers.rs` do, without the work.

Main is one server: it receives a report, returns the batch whose turn it is, sends the next task. Tasks go to the
workers in strict turns, so many ahead; batches are returned in order; when main has waited for a millisecond, tasks
that wait behind another one go to workers that have nothing to do. Times are in microseconds. The same arguments give
the same result.
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
    """What a batch costs."""

    main: float  # main's processor time
    work: Callable[[int], float]  # a worker's time for batch number so-and-so, without what it copies
    bytes: float = 0.0
    core_rate: float = math.inf  # bytes a microsecond that one core copies
    memory_rate: float = math.inf  # bytes a microsecond that all cores together copy
    sleeps: bool = False  # a worker's time takes no processor


@dataclasses.dataclass(frozen=True)
class Outcome:
    returned: list[float]  # when the user got each batch
    main_busy: float  # shares of the time from `since` on
    workers_busy: float
    memory_busy: float  # of what memory could have copied meanwhile

    def between(self, first: int, last: int) -> float:
        """Time per batch from one batch to another."""
        return (self.returned[last] - self.returned[first]) / (last - first)


class Sharing:
    """Jobs that all go on at one rate, which may change at any time: what is done of each is done of all."""

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
        """Goes on to the end of the next job; false when there is none."""
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
        # Sums of many small steps are not exact: the job that is over is over.
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
        # By number of the task.
        self.worker_of: list[int] = []
        self.begun: list[bool] = []
        self.arrived: list[bool] = []
        self.reports: deque[int] = deque()
        self.returned: list[float] = []
        self.main_works = False
        # Main has waited for one batch since long enough at this time.
        self.move_at: float | None = None
        self.main_busy = self.workers_busy = self.copied = 0.0

    def run(self, since: int, until: int) -> Outcome:
        """Until so many batches are returned; how busy everything was `since` so many were."""
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
        """What main does next, if it is idle: half of its cost is to receive, the other half to return and send."""
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
        """Moves tasks, if main still waits for the same batch. Earlier alarms find that it does not."""
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
    """An epoch of `batches`, or its part until so many are returned; `cores` are shared by main and its workers."""
    return Epoch(costs, workers, batches, prefetch_factor, cores).run(since, batches if until is None else until)


def steady(costs: Costs, workers: int, prefetch_factor: int = DEFAULT_PREFETCH_FACTOR) -> tuple[float, Outcome]:
    """Batches a second of an epoch without an end, with a core for each process."""
    # Equal workers answer in waves: whole waves are counted.
    waves = max(40, math.ceil(2000 / workers))
    first, last = workers * (waves // 4), workers * waves
    endless = last + 1 + workers * prefetch_factor
    outcome = simulate(costs, workers, endless, prefetch_factor, since=first + 1, until=last + 1)
    return 1e6 / outcome.between(first, last), outcome


def bound(costs: Costs, workers: int, mean_work: float) -> float:
    """Batches a second that no schedule can beat."""
    rates = [workers / (mean_work + costs.bytes / costs.core_rate)]
    rates += [1 / costs.main] if costs.main else []
    rates += [costs.memory_rate / costs.bytes] if costs.bytes else []
    return 1e6 * min(rates)
