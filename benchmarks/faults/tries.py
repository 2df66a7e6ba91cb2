"""Tries a fault: starts the program, kills or stops processes from outside, records how it ends and what is left."""

import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from faults import Fault, read

DEADLINE_SECONDS = 20.0  # time after the fault; a program that has not ended by then hangs
START_SECONDS = 60.0  # maximum time until the fault
GRACE_SECONDS = 2.0  # time after the end of the program; what is still there then is left over
POLL_SECONDS = 0.005
SLOW_POLL_SECONDS = 0.05
STACK_SECONDS = 0.2  # time in which a program writes its stack
SHARED_MEMORY = pathlib.Path("/dev/shm")
HOST = pathlib.Path(__file__).with_name("host.py")


class Broken(Exception):
    """Why a try did not measure the loader."""


class Hosts:
    """Starts programs. Each is forked from a process that has imported PyTorch."""

    def __init__(self):
        # The process must have one thread only, because it forks.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, HOST, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
            start_new_session=True,
        )
        self.lock = threading.Lock()

    def start(self, fault: Fault, folder: pathlib.Path) -> int:
        with self.lock:
            self.process.stdin.write(f"{fault.name} {folder}\n")
            return int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def attempt(fault: Fault, hosts: Hosts) -> dict:
    """Tries the fault and returns the result. All processes and files of the try are removed afterwards."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="faults-"))
    (folder / "tmp").mkdir()
    before = named_memory()
    main = hosts.start(fault, folder)
    watched = Watched(fault, main, folder)
    try:
        watched.watch()
        return {"fault": fault.name, **watched.result(), **left_over(watched, before)}
    finally:
        end_session(main)
        for name in named_memory() - before:
            if belongs(name, watched.pids()):
                (SHARED_MEMORY / name).unlink(missing_ok=True)
        shutil.rmtree(folder)


class Watched:
    """A program, from its start to its end or to the deadline."""

    def __init__(self, fault: Fault, main: int, folder: pathlib.Path):
        self.fault, self.main, self.folder = fault, main, folder
        self.path = str(folder / "events")
        self.started = time.monotonic()
        self.acted: float | None = None
        self.main_gone: float | None = None
        self.workers_gone: float | None = None
        self.events: dict[str, list[dict]] = collections.defaultdict(list)
        self.size = 0  # size of the file of events when it was last read

    def watch(self) -> None:
        while not self.finished():
            time.sleep(POLL_SECONDS)

    def finished(self) -> bool:
        if self.main_gone is None and not runs(self.main):
            self.main_gone = time.monotonic()
        self.read_events()
        if self.acted is None and self.fault.outside and self.events["now"]:
            self.act()
        at = self.fault_at()
        if at is None:
            self.without_fault()
            return False
        if self.workers_gone is None and not any(map(runs, self.workers())):
            self.workers_gone = time.monotonic()
        ended = self.main_gone is not None and (self.workers_gone is not None or self.fault.part != "main")
        return ended or time.monotonic() > at + DEADLINE_SECONDS

    def read_events(self) -> None:
        size = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        if size == self.size:
            return
        self.size = size
        self.events = collections.defaultdict(list)
        for event in read(self.path):
            self.events[event["event"]].append(event)

    def act(self) -> None:
        # Waits, so that the fault happens at a random moment.
        time.sleep(random.uniform(0, 0.01))
        if not runs(self.main):
            raise Broken("the program ended before the fault")
        self.acted = time.monotonic()
        self.fault.outside(self.main, self.workers())

    def without_fault(self) -> None:
        if self.main_gone is not None:
            raise Broken(f"the program ended without a fault: {self.last_words()}")
        if time.monotonic() > self.started + START_SECONDS:
            raise Broken(f"no fault happened within {START_SECONDS:.0f} s")

    def fault_at(self) -> float | None:
        return self.acted or next((event["at"] for event in self.events["fault"]), None)

    def workers(self) -> list[int]:
        return self.events["workers"][-1]["workers"] if self.events["workers"] else []

    def pids(self) -> set[int]:
        return {self.main, *self.workers()}

    def result(self) -> dict:
        of_part = {"epoch": self.of_epoch, "drop": self.of_drop, "main": self.of_main}[self.fault.part]()
        words = self.words()
        return {
            **of_part,
            "exit_seconds": self.since(self.main_gone),
            "exit_status": exit_status(self.main) if self.main_gone else None,
            "stderr_lines": len(words),
            "last_words": self.last_words(),
            "waits_in": self.waits_in() if self.main_gone is None else None,
        }

    def waits_in(self) -> list[str]:
        """Returns the stack of the main thread of a program that hangs, with the innermost call first."""
        os.kill(self.main, signal.SIGUSR1)
        time.sleep(STACK_SECONDS)
        stack = (self.folder / "stack").read_text()
        return [f"{name} {call}" for name, call in re.findall(r'File ".*?(\w+)\.py", line \d+ in (\S+)', stack)]

    def of_epoch(self) -> dict:
        ended, lost = self.last("ended"), self.last("lost")
        if ended:
            rest = {name: ended[name] for name in ("batches", "expected", "missing", "twice", "errors")}
            return {"outcome": "survived" if ended["right"] else "wrong", "seconds": self.since(ended["at"]), **rest}
        if lost:
            if "Caught " in lost["error"] and not self.fault.raises:
                raise Broken(f"the sample raised: {lost}")
            rest = {name: lost[name] for name in ("error", "last_line", "cause", "place", "batches", "errors")}
            return {"outcome": "lost", "seconds": self.since(lost["at"]), **rest}
        if self.main_gone is None:
            return {"outcome": "hung", "seconds": None}
        if os.WIFEXITED(exit_status(self.main)):
            raise Broken(f"the program failed: {self.last_words()}")
        died = f"the program died of signal {os.WTERMSIG(exit_status(self.main))}"
        return {"outcome": "lost", "seconds": self.since(self.main_gone), "error": died}

    def of_drop(self) -> dict:
        returned = self.last("returned")
        if returned is None:
            if self.main_gone is not None:
                raise Broken(f"the program failed: {self.last_words()}")
            return {"outcome": "hung", "seconds": None}
        # There are two events: at once, and after two seconds if workers still ran.
        running = [event["running"] for event in self.events["after_drop"]]
        return {"outcome": "returned", "seconds": self.since(returned["at"]), "workers_running": running}

    def of_main(self) -> dict:
        if self.last("ended"):
            raise Broken("the epoch ended before the fault")
        return {"outcome": "gone" if self.workers_gone else "left", "seconds": self.since(self.workers_gone)}

    def last(self, event: str) -> dict | None:
        return self.events[event][-1] if self.events[event] else None

    def since(self, at: float | None) -> float | None:
        return None if at is None else round(at - self.fault_at(), 4)

    def words(self) -> list[str]:
        """Returns the lines on standard error."""
        with open(self.folder / "stderr", errors="replace") as file:
            return [line.rstrip() for line in file if line.strip()]

    def last_words(self) -> str | None:
        words = self.words()
        return words[-1] if words else None

    def role(self, pid: int) -> str:
        if pid == self.main:
            return "main"
        if any(event["pid"] == pid for event in self.events["child"]):
            return "child"
        return "worker" if any(pid in event["workers"] for event in self.events["workers"]) else "other"


def left_over(watched: Watched, before: set[str]) -> dict:
    """Returns the remaining processes by role, and the remaining files by name, without the numbers in it."""
    give_up = time.monotonic() + GRACE_SECONDS
    # If main hangs, its processes do not end, so waiting is useless.
    while watched.main_gone and session(watched.main) and time.monotonic() < give_up:
        time.sleep(SLOW_POLL_SECONDS)
    processes = collections.Counter(watched.role(pid) for pid in session(watched.main))
    new = [name for name in named_memory() - before if belongs(name, watched.pids())]
    files = [path.name for path in (watched.folder / "tmp").iterdir()]
    return {"left": dict(processes), "named_memory": sorted(map(plain, new)), "temporary": sorted(map(plain, files))}


def belongs(name: str, pids: set[int]) -> bool:
    """True if a file in /dev/shm is PyTorch's: these have the process id in their name. Others belong to other
    programs, or are semaphores whose names exist for microseconds only."""
    found = re.match(r"torch_(\d+)_", name)
    return bool(found) and int(found[1]) in pids


def plain(name: str) -> str:
    return re.sub(r"(pymp|torch|tmp)[-_]?\w*", r"\1-*", name)


def named_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()}


def stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on, or nothing if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def runs(pid: int) -> bool:
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def exit_status(pid: int) -> int:
    return int(stat(pid)[-1])


def session(main: int) -> list[int]:
    """Returns all running processes in the session of a program, whatever their parent is."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if (fields := stat(pid)) and int(fields[3]) == main and fields[0] not in "ZX"]


def end_session(main: int) -> None:
    while pids := session(main):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(SLOW_POLL_SECONDS)
