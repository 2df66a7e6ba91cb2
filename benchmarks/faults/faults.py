"""The faults: what happens, to which process, and when.

A fault belongs to one of three parts. `epoch`: the program reads an epoch to its end. `drop`: it drops the iterator in
mid-epoch. `main`: the program itself dies.
"""

import ctypes
import dataclasses
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable

WORKERS = 2
BATCHES = 300
BATCH_SIZE = 4
SAMPLE_SECONDS = 0.001
FAULT_BATCH = 100
FAULTY = FAULT_BATCH * BATCH_SIZE + 1  # the sample in which a worker's fault happens, in the middle of that batch
STUCK_SECONDS = 30
OUTLIVES_SECONDS = 10


class Log:
    """A file of events with their times, one line of JSON each. The program and its workers write to it."""

    def __init__(self, path: str):
        self.path = path
        # Opened once, so that a process without free descriptors can still write.
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, event: str, **values) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **values})
        os.write(self.descriptor, line.encode() + b"\n")

    def wait_for(self, event: str) -> None:
        while not any(found["event"] == event for found in read(self.path)):
            time.sleep(0.001)


def read(path: str) -> list[dict]:
    try:
        with open(path, "rb") as file:
            return [json.loads(line) for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    except FileNotFoundError:
        return []


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    title: str
    part: str = "epoch"
    # Called in the program: before the loader is made, at the first batch, at batch `FAULT_BATCH`, between two epochs.
    before: Callable[[Log], None] | None = None
    started: Callable[[Log], None] | None = None
    mid_epoch: Callable[[Log, list[int]], None] | None = None
    between: Callable[[Log, list[int]], None] | None = None
    # Called in a worker: when it starts, and in each sample.
    worker_init: Callable[[int], None] | None = None
    in_sample: Callable[[Log, int], None] | None = None
    # Called by the process that watches, after the event `now`.
    outside: Callable[[int, list[int]], None] | None = None
    options: dict = dataclasses.field(default_factory=dict)  # of the DataLoader
    drop_after: int = FAULT_BATCH  # number of batches before the drop, in the part `drop`
    step_seconds: float = 0.0  # time that the program takes for each batch
    goes_on: bool = False  # the program catches an error and asks for the next batch
    holds: bool = False  # the program keeps all batches
    raises: bool = False  # the exception of the sample is the fault
    replaces_main: bool = False  # the process of main becomes another program
    slow: bool = False  # a try mostly waits for seconds, so that many tries can run at once


def once(deed: Callable[[Log], None]) -> Callable[[Log, int], None]:
    """Calls `deed` in one sample of the epoch. The fault is what `deed` does after it has written `fault`."""
    return lambda log, index: deed(log) if index == FAULTY else None


def fault_then(deed: Callable[[], object]) -> Callable[[Log, int], None]:
    def both(log: Log) -> None:
        log.write("fault")
        deed()

    return once(both)


def ask(log: Log, workers: list[int]) -> None:
    log.write("now")


def ask_between(log: Log, workers: list[int]) -> None:
    log.write("now")
    time.sleep(0.5)


def begin(log: Log, workers: list[int]) -> None:
    log.write("fault")


def kill_a_worker(main: int, workers: list[int]) -> None:
    os.kill(random.choice(workers), signal.SIGKILL)


def stop_a_worker(main: int, workers: list[int]) -> None:
    os.kill(random.choice(workers), signal.SIGSTOP)


def kill_main(main: int, workers: list[int]) -> None:
    os.kill(main, signal.SIGKILL)


def interrupt_group(main: int, workers: list[int]) -> None:
    os.killpg(main, signal.SIGINT)


def stop_first(log: Log, workers: list[int]) -> None:
    os.kill(workers[0], signal.SIGSTOP)


def then(deed: Callable[[], object]) -> Callable[[Log, list[int]], None]:
    def both(log: Log, workers: list[int]) -> None:
        log.write("fault")
        deed()

    return both


def fork_and_ask(log: Log, workers: list[int]) -> None:
    fork_that_sleeps(log, OUTLIVES_SECONDS)
    log.write("now")


def fork_that_sleeps(log: Log, seconds: float) -> None:
    if os.fork() == 0:
        log.write("child")
        time.sleep(seconds)
        os._exit(0)


def fork_in_sample(seconds: float) -> Callable[[Log], None]:
    def deed(log: Log) -> None:
        log.write("fault")
        fork_that_sleeps(log, seconds)

    return deed


def stuck(log: Log) -> None:
    log.write("now")
    time.sleep(STUCK_SECONDS)


def block_all_signals(log: Log) -> None:
    log.write("blocked")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def block_all_signals_and_stick(log: Log) -> None:
    block_all_signals(log)
    stuck(log)


def ignore_sigterm_and_stick(log: Log) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stuck(log)


def write_much(log: Log, index: int) -> None:
    if index == FAULTY:
        log.write("fault")
    if index >= FAULTY:
        sys.stdout.write("noise " * 3000 + "\n")
        os.write(1, b"noise\n" * 3000)


def descriptors_open() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def limit_descriptors(limit: Callable[[], int]) -> Callable[[Log], None]:
    def deed(log: Log) -> None:
        # The fault begins here, because the start of the loader may fail.
        log.write("fault", open=descriptors_open(), limit=limit())
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    return deed


def limit_memory(worker: int) -> None:
    """Limits the address space of the worker to 64 MiB more than it uses now."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))


def ignore_sigchld(log: Log) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def replace_sigchld(log: Log) -> None:
    signal.signal(signal.SIGCHLD, lambda number, frame: None)


def reap_everything(log: Log) -> None:
    def reap() -> None:
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.001)

    threading.Thread(target=reap, daemon=True).start()


KILLED = {"mid_epoch": ask, "outside": kill_a_worker}
PERSISTENT = {"options": {"persistent_workers": True}, "between": ask_between, "outside": kill_a_worker}

EPOCH = [
    Fault("none", "no fault", mid_epoch=begin),
    Fault("worker-killed", "worker killed (SIGKILL)", **KILLED),
    Fault(
        "worker-killed-in-step",
        "worker killed while the program trains, 5 ms a batch",
        step_seconds=0.005,
        **KILLED,
    ),
    Fault("worker-killed-goes-on", "worker killed; the program catches the error and goes on", goes_on=True, **KILLED),
    Fault(
        "sample-kills",
        "same sample always kills its worker",
        in_sample=fault_then(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    ),
    Fault("worker-aborts", "sample aborts", in_sample=fault_then(os.abort)),
    Fault("worker-segfaults", "sample segfaults", in_sample=fault_then(lambda: ctypes.string_at(0))),
    Fault("worker-exits", "sample calls `_exit(0)`", in_sample=fault_then(lambda: os._exit(0)), slow=True),
    Fault("worker-stopped", "worker stopped (SIGSTOP)", mid_epoch=ask, outside=stop_a_worker, slow=True),
    Fault(
        "worker-stopped-timeout",
        "worker stopped, `timeout=3`",
        mid_epoch=ask,
        outside=stop_a_worker,
        options={"timeout": 3},
        slow=True,
    ),
    Fault("persistent-killed", "persistent worker killed between two epochs", **PERSISTENT),
    Fault(
        "persistent-killed-goes-on",
        "the same; the program catches the error and goes on",
        goes_on=True,
        slow=True,
        **PERSISTENT,
    ),
    Fault(
        "descriptors-held",
        "64 descriptors, all batches held",
        before=limit_descriptors(lambda: 64),
        holds=True,
    ),
    Fault(
        "descriptors-start",
        "8 descriptors left at the start of the workers",
        before=limit_descriptors(lambda: descriptors_open() + 8),
    ),
    Fault(
        "memory-limited",
        "sample allocates more than `RLIMIT_AS` allows",
        worker_init=limit_memory,
        in_sample=fault_then(lambda: bytearray(1 << 30)),
        raises=True,
    ),
    Fault("sample-writes", "samples write 36 kB each to stdout", in_sample=write_much),
    Fault("sample-reads", "sample reads `sys.stdin`", in_sample=fault_then(lambda: sys.stdin.readline())),
    Fault("sample-reads-0", "sample reads descriptor 0", in_sample=fault_then(lambda: os.read(0, 100)), slow=True),
    Fault(
        "sample-closes",
        "sample closes all descriptors from 3 on",
        in_sample=fault_then(lambda: os.closerange(3, 4096)),
        raises=True,
        slow=True,
    ),
    Fault("sample-forks", "sample forks, child exits at once", in_sample=once(fork_in_sample(0))),
    Fault("sample-forks-sleeper", "sample forks, child sleeps 5 s", in_sample=once(fork_in_sample(5)), slow=True),
    Fault(
        "sigchld-ignored-before",
        "SIGCHLD ignored before the loader, worker killed",
        before=ignore_sigchld,
        **KILLED,
    ),
    Fault(
        "sigchld-ignored-after",
        "SIGCHLD ignored once the workers run, worker killed",
        started=ignore_sigchld,
        slow=True,
        **KILLED,
    ),
    Fault(
        "sigchld-replaced",
        "SIGCHLD handler replaced once the workers run, worker killed",
        started=replace_sigchld,
        slow=True,
        **KILLED,
    ),
    Fault(
        "reaper",
        "a thread reaps every child (`waitpid(-1)`), worker killed",
        before=reap_everything,
        slow=True,
        **KILLED,
    ),
]

DROP = [
    Fault("drop", "no fault", "drop"),
    Fault("drop-stuck", "a worker is stuck, 30 s in a sample", "drop", in_sample=once(stuck), slow=True),
    Fault("drop-stopped", "a worker is stopped (SIGSTOP)", "drop", mid_epoch=stop_first, slow=True),
    Fault(
        "drop-blocked",
        "a worker has blocked all signals",
        "drop",
        in_sample=once(block_all_signals),
        drop_after=FAULT_BATCH + 20,
    ),
    Fault(
        "drop-blocked-stuck",
        "a worker has blocked all signals, and is stuck",
        "drop",
        in_sample=once(block_all_signals_and_stick),
        slow=True,
    ),
    Fault(
        "drop-ignored-stuck",
        "a worker ignores SIGTERM, and is stuck",
        "drop",
        in_sample=once(ignore_sigterm_and_stick),
        slow=True,
    ),
]

MAIN = [
    Fault("main-killed", "main killed (SIGKILL)", "main", mid_epoch=ask, outside=kill_main, slow=True),
    Fault(
        "main-killed-stuck",
        "main killed while a worker is stuck, 30 s in a sample",
        "main",
        in_sample=once(stuck),
        outside=kill_main,
        slow=True,
    ),
    Fault("main-aborts", "main aborts", "main", mid_epoch=then(os.abort), slow=True),
    Fault("main-exits", "main calls `sys.exit()`", "main", mid_epoch=then(lambda: sys.exit(1))),
    Fault("main-exits-at-once", "main calls `os._exit()`", "main", mid_epoch=then(lambda: os._exit(1)), slow=True),
    Fault(
        "main-execs",
        "main runs another program in its place, for 10 s",
        "main",
        mid_epoch=then(lambda: os.execv("/bin/sleep", ["sleep", str(OUTLIVES_SECONDS)])),
        replaces_main=True,
        slow=True,
    ),
    Fault(
        "main-forks",
        "main forks a child that lives for 10 s, and is killed",
        "main",
        mid_epoch=fork_and_ask,
        outside=kill_main,
        slow=True,
    ),
    Fault("interrupt", "Ctrl-C (SIGINT to the group)", "main", mid_epoch=ask, outside=interrupt_group),
    Fault(
        "interrupt-stuck",
        "Ctrl-C while a worker is stuck, 30 s in a sample",
        "main",
        in_sample=once(stuck),
        outside=interrupt_group,
        slow=True,
    ),
]

FAULTS = {fault.name: fault for fault in [*EPOCH, *DROP, *MAIN]}
