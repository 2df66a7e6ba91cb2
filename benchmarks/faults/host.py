"""The program in which a fault happens.

    python host.py --serve        # forks a program for each line `FAULT FOLDER` of standard input; prints its pid
    python host.py FAULT FOLDER   # runs one program

With --serve, PyTorch is imported once for all programs, because the import takes longer than most tries. Before it
forks, the process has started no worker and loaded nothing. Each program has a session of its own, and ends like any
program, at the end of this file.
"""

import faulthandler
import os
import resource
import signal
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset

from faults import BATCH_SIZE, BATCHES, FAULT_BATCH, FAULTS, SAMPLE_SECONDS, WORKERS, Fault, Log

WIDTH = 16  # length of a sample
MAX_ERRORS = 5  # number of errors that a program catches before it gives up


class Samples(Dataset):
    def __init__(self, fault: Fault, log: Log):
        self.fault, self.log = fault, log

    def __len__(self):
        return BATCHES * BATCH_SIZE

    def __getitem__(self, index):
        time.sleep(SAMPLE_SECONDS)
        if self.fault.in_sample:
            self.fault.in_sample(self.log, index)
        return torch.full((WIDTH,), index)


class Program:
    """Reads batches and checks each of them."""

    def __init__(self, fault: Fault, log: Log):
        self.fault, self.log = fault, log
        self.place = "before"  # what the program does now, for the report of an error
        self.seen: list[int] = []  # numbers of the batches of all epochs; -1 for a batch with wrong content
        self.held: list = []
        self.errors: list[str] = []
        self.workers: list[int] = []
        if fault.before:
            fault.before(log)
        self.loader = DataLoader(
            Samples(fault, log),
            batch_size=BATCH_SIZE,
            num_workers=WORKERS,
            worker_init_fn=fault.worker_init,
            **fault.options,
        )

    def read(self) -> None:
        self.epoch()
        if not self.fault.between:
            return
        self.place = "between"
        try:
            self.fault.between(self.log, self.workers)
        except Exception as error:
            self.caught(error)
        self.epoch()

    def epoch(self) -> None:
        iterator = self.start()
        number = 0
        while True:
            self.place = "next"
            try:
                batch = next(iterator)
                self.place = "step"
                self.take(batch, number)
            except StopIteration:
                return
            except Exception as error:
                self.caught(error)
            number += 1

    def start(self):
        self.place = "iter"
        iterator = iter(self.loader)
        self.workers = [worker.pid for worker in iterator._workers]
        self.log.write("workers", workers=self.workers)
        return iterator

    def take(self, batch: torch.Tensor, number: int) -> None:
        self.seen.append(number_of(batch))
        if self.fault.holds:
            self.held.append(batch)
        if self.fault.started and number == 0:
            self.fault.started(self.log)
        if self.fault.mid_epoch and number == FAULT_BATCH:
            self.fault.mid_epoch(self.log, self.workers)
        if self.fault.step_seconds:
            time.sleep(self.fault.step_seconds)

    def caught(self, error: Exception) -> None:
        self.errors.append(first_line(error))
        if not self.fault.goes_on or len(self.errors) > MAX_ERRORS:
            raise error

    def epochs(self) -> int:
        return 2 if self.fault.between else 1


def number_of(batch: torch.Tensor) -> int:
    number = int(batch[0, 0]) // BATCH_SIZE
    first = number * BATCH_SIZE
    right = torch.arange(first, first + BATCH_SIZE).unsqueeze(1).expand(BATCH_SIZE, WIDTH)
    return number if torch.equal(batch, right) else -1


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def epoch(fault: Fault, log: Log) -> None:
    program = Program(fault, log)
    try:
        program.read()
    except BaseException as error:
        cause = error.__cause__ or error.__context__
        log.write(
            "lost",
            error=first_line(error),
            last_line=str(error).rstrip().rpartition("\n")[2],
            cause=first_line(cause) if cause else None,
            place=program.place,
            batches=len(program.seen),
            errors=program.errors,
        )
        raise
    expected = list(range(BATCHES)) * program.epochs()
    log.write(
        "ended",
        right=program.seen == expected,
        batches=len(program.seen),
        expected=len(expected),
        missing=sum(max(0, program.epochs() - program.seen.count(number)) for number in range(BATCHES)),
        twice=sum(max(0, program.seen.count(number) - program.epochs()) for number in range(BATCHES)),
        errors=program.errors,
    )


def drop(fault: Fault, log: Log) -> None:
    program = Program(fault, log)
    iterator = program.start()
    for number in range(fault.drop_after):
        program.take(next(iterator), number)
    if fault.mid_epoch:
        fault.mid_epoch(log, program.workers)
    elif fault.in_sample:
        log.wait_for("now" if fault.drop_after == FAULT_BATCH else "blocked")
    log.write("fault")
    del iterator
    log.write("returned")
    log.write("after_drop", running=running(program.workers))
    if running(program.workers):
        time.sleep(2)
    log.write("after_drop", running=running(program.workers))


def running(workers: list[int]) -> int:
    """Returns how many of the workers run. A zombie counts as ended."""
    return sum(state(pid) not in ("", "Z", "X") for pid in workers)


def state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def serve() -> list[str]:
    """Forks a program for each request. Returns only in the programs, with their arguments."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            return line.split()
        # The program is never waited for, so that its exit status stays readable in /proc.
        print(pid, flush=True)
    os._exit(0)


def settle(folder: str) -> None:
    """Gives the program a session, files for its output, and a standard input that stays silent, like a terminal's."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TMPDIR"] = os.path.join(folder, "tmp")
    tempfile.tempdir = None
    # If the program hangs, the process that watches sends SIGUSR1 to get its stack.
    stack = os.open(os.path.join(folder, "stack"), os.O_WRONLY | os.O_CREAT)
    faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    silent, _ = os.pipe()
    os.dup2(silent, 0)
    os.close(silent)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)


name, folder = serve() if sys.argv[1:] == ["--serve"] else sys.argv[1:]
settle(folder)
log = Log(os.path.join(folder, "events"))
fault = FAULTS[name]
(drop if fault.part == "drop" else epoch)(fault, log)
