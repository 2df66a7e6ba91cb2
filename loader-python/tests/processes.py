"""Processes that tests start, and what processes leave behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

#: Environment variable by which `left_of` finds the processes of a script.
MARK = "LOADER_TEST_SCRIPT"


class Process(NamedTuple):
    pid: int
    #: A letter, such as `Z` for a zombie.
    state: str
    parent: int
    session: int
    command: str


def all_processes() -> Iterator[Process]:
    """Lists the processes of the system."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield Process(int(folder.name), state, int(parent), int(session), command)


def children() -> dict[int, str]:
    """Returns the states and command lines of all processes that this one has started, directly or through its template
    of workers, by process id. Left out are those that live as long as this process: the template itself, and Python's
    tracker of shared resources and its server of forks. Ended processes that nobody has waited for count."""
    parents, commands = {}, {}
    for process in all_processes():
        parents[process.pid], commands[process.pid] = process.parent, f"{process.state} {process.command}"
    found, parent = {}, os.getpid()
    lasting = ("loader._workers._template", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
    left_out = {pid for pid in parents if parents[pid] == parent and any(name in commands[pid] for name in lasting)}
    for pid in parents:
        ancestor = parents[pid]
        while ancestor not in (0, parent):
            ancestor = parents.get(ancestor, 0)
        if ancestor == parent and pid not in left_out:
            found[pid] = commands[pid]
    return found


def workers() -> list[int]:
    """Returns the process ids of the workers that run."""
    running = [pid for pid, command in children().items() if not command.startswith("Z")]
    return [pid for pid in running if Path(f"/proc/{pid}/comm").read_text().startswith("loader-wkr-")]


def shared_memory(of: int | None = None) -> set[str]:
    """Returns the file descriptors and mappings of shared memory of a process, without those that `multiprocessing`
    keeps for later values of its own."""
    folder = Path(f"/proc/{of or 'self'}")
    found = set()
    for descriptor in (folder / "fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if _is_shared(target):
            found.add(f"descriptor {descriptor.name}: {target}")
    for line in (folder / "maps").read_text().splitlines():
        if _is_shared(line):
            found.add("mapping " + line.split()[0])
    return found


def _is_shared(name: str) -> bool:
    return ("memfd:" in name or "/dev/shm" in name) and "/dev/shm/pym-" not in name


def descriptors(of: int | None = None) -> dict[str, str]:
    """Returns the targets of all file descriptors of a process."""
    found = {}
    for descriptor in Path(f"/proc/{of or 'self'}/fd").iterdir():
        try:
            found[descriptor.name] = os.readlink(descriptor)
        except FileNotFoundError:
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for a condition. Returns whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Script:
    """A Python program in a process of its own: `arguments` are those of the interpreter.

    Its output is read line by line, so that a test can wait until the script has got somewhere.
    """

    def __init__(self, *arguments: object, text: str | None = None, **environment: str) -> None:
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [sys.executable, *map(str, arguments)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=dict(os.environ, **environment, **{MARK: self.mark}),
        )  # fmt: skip
        if text is not None:
            self.process.stdin.write(text)
            self.process.stdin.close()
            self.process.stdin = None

    def wait_for(self, line: str) -> re.Match:
        """Reads lines until one matches."""
        for got in self.process.stdout:
            if match := re.search(line, got):
                return match
        raise AssertionError(f"the script has ended without {line!r}:\n{self.process.stderr.read()}")

    def end(self, seconds: float = 60) -> tuple[int, str, str]:
        """Waits for the end. Returns the exit status, and what is left of the two outputs. Fails if a process is
        left."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler prints where each thread is.
            out, err = self.process.communicate()
            raise AssertionError(f"the script has not ended after {seconds} s:\n{out}\n{err}") from None
        finally:
            self.kill_left()
        return self.process.returncode, out, err

    def left(self) -> dict[int, str]:
        """Returns the processes that the script has started, and those that these have started, which still run."""
        found = {}
        wanted = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if int(folder.name) != self.process.pid and wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def kill_left(self) -> None:
        for pid in [*self.left(), *([self.process.pid] if self.process.poll() is None else [])]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run(*arguments: object, text: str | None = None, seconds: float = 60, **environment: str) -> str:
    """Runs a Python program that must succeed and leave no process. Returns its output."""
    script = Script("-X", "faulthandler", *arguments, text=text, **environment)
    try:
        out, err = script.process.communicate(timeout=seconds)
        status = script.process.returncode
        assert status == 0, f"status {status}:\n{out}\n{err}"
        wait_until(lambda: not script.left(), 5)
        assert not script.left(), "processes are left"
        return out
    except subprocess.TimeoutExpired:
        script.process.send_signal(signal.SIGABRT)
        out, err = script.process.communicate()
        raise AssertionError(f"the script has not ended after {seconds} s:\n{out}\n{err}") from None
    finally:
        script.kill_left()
