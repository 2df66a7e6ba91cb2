"""Ctrl-C ends every wait within 2 s, with `KeyboardInterrupt`. No process is left when main has ended."""

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from torch_datasets import Rows, Stream
from processes import Script, wait_until

import loader

#: A script that says when it begins to wait, and where Ctrl-C has found it.
SCRIPT = """
import os, signal, sys, time, traceback
sys.path.insert(0, {folder!r})
import torch
from torch_datasets import Rows, Slow, Stream
from loader import DataLoader
import test_interrupts as here

if __name__ == "__main__":
    loader, before = {loader}
    iterator = iter(loader)
    for _ in range(before):
        next(iterator)
    print("waits", flush=True)
    try:
        {wait}
        print("did not wait", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    {after}
"""

NEXT = "next(iterator)"
#: The loader, the batches before the wait, the wait, and what happens after it.
WAITS = {
    "the first batch of a slow worker": ("DataLoader(Slow(4, 1000, (0,)), num_workers=1), 0", NEXT, ""),
    "a later batch": ("DataLoader(Slow(9, 1000, (3,)), num_workers=2), 3", NEXT, ""),
    "the start of a worker": ("DataLoader(Rows(4), num_workers=1, worker_init_fn=here.never_begin), 0", NEXT, ""),
    "a stream": ("DataLoader(here.SlowStream(), num_workers=1), 1", NEXT, ""),
    "a batch without workers": ("DataLoader(Slow(4, 1000, (1,))), 1", NEXT, ""),
    "a persistent worker": (
        "DataLoader(Slow(4, 1000, (3,)), num_workers=1, persistent_workers=True), 2",
        "list(iterator)",
        "",
    ),
    "a collate_fn": ("DataLoader(Rows(4), num_workers=1, collate_fn=here.never_collate), 0", NEXT, ""),
    "a timeout": ("DataLoader(Slow(4, 1000, (0,)), num_workers=1, timeout=500), 0", NEXT, ""),
    "a worker that ignores Ctrl-C": ("DataLoader(here.Deaf(4), num_workers=1), 0", NEXT, ""),
    "user code between batches": ("DataLoader(Rows(40), num_workers=2), 2", "time.sleep(1000)", ""),
    "what persistent workers still load": (
        "DataLoader(Slow(9, 1000, (3,)), num_workers=1, persistent_workers=True), 2",
        "iter(loader)",
        "",
    ),
    "what persistent workers of a Rust dataset still load": (
        "DataLoader(here.rust_rows(), num_workers=1, persistent_workers=True), 2",
        "os.kill(iterator._workers[0].pid, signal.SIGSTOP); iter(loader)",
        "",
    ),
    "a template that is stopped": (
        "DataLoader(Rows(4), num_workers=1, multiprocessing_context='forkserver'), 0",
        "os.kill(here.parent_of(iterator._workers[0].pid), signal.SIGSTOP); iter(loader)",
        # A template that stays stopped cannot end with main.
        "os.kill(here.parent_of(iterator._workers[0].pid), signal.SIGCONT)",
    ),
    "the opening of a Rust dataset": ("DataLoader(Rows(2)), 0", "here.open_forever()", ""),
    "a sampler": ("DataLoader(Rows(9), sampler=here.SlowSampler(), num_workers=1), 2", "list(iterator)", ""),
}


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def never_begin(worker):
    time.sleep(1000)


def never_collate(samples):
    time.sleep(1000)


def rust_rows():
    """Returns more rows than workers load ahead."""
    path = Path(sys.argv[0]).with_name("rows.csv")
    path.write_text("number\n" + "1\n" * 100)
    return loader.Csv(path)


def open_forever():
    """Opens a file of a server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        loader.Csv(f"http://127.0.0.1:{server.getsockname()[1]}/rows.csv", store={"allow_http": True})


class SlowSampler:
    def __iter__(self):
        yield from range(5)
        time.sleep(1000)


class SlowStream(Stream):
    def __init__(self):
        super().__init__((1,))

    def __iter__(self):
        yield 1
        time.sleep(1000)


class Deaf(Rows):
    def __getitem__(self, index):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)


def interrupted(tmp_path, loader, wait, after, whole_group):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(folder=os.path.dirname(__file__), loader=loader, wait=wait, after=after))
    script = Script("-X", "faulthandler", path)
    try:
        script.wait_for("^waits$")
        time.sleep(0.5)
        started = time.monotonic()
        # A terminal sends the signal to all processes of its group.
        for pid in [script.process.pid, *(script.left() if whole_group else [])]:
            os.kill(pid, signal.SIGINT)
        line = script.wait_for("interrupted|did not wait")
        seconds = time.monotonic() - started
        _, err = script.process.communicate(timeout=30)
        ended = time.monotonic() - started
        assert line[0] == "interrupted"
        assert seconds < 2, f"the wait ended after {seconds:.1f} s"
        assert wait_until(lambda: not script.left(), 2), f"processes are left: {script.left()}"
        return script.process.returncode, ended, err
    finally:
        script.kill_left()


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_the_wait(wait, tmp_path):
    status, ended, err = interrupted(tmp_path, *WAITS[wait], whole_group=False)
    assert status == 0
    assert err == ""
    # At its end the loader waits five seconds for a worker that is in the user's code, and kills it then.
    assert ended < 15, f"the script ended after {ended:.1f} s"


def test_ctrl_c_of_a_terminal_reaches_workers_too(tmp_path):
    status, _, err = interrupted(
        tmp_path, "DataLoader(Slow(9, 1000, (3,)), num_workers=2), 3", NEXT, "", whole_group=True
    )
    assert status == 0
    assert err == "", "a worker has printed something"


def test_the_loader_can_be_used_after_ctrl_c(tmp_path):
    after = "del iterator; loader = DataLoader(Rows(4), num_workers=1); assert len(list(loader)) == 4"
    status, _, err = interrupted(
        tmp_path, "DataLoader(Slow(4, 1000, (1,)), num_workers=1), 1", NEXT, after, whole_group=True
    )
    assert (status, err) == (0, "")


def test_ctrl_c_at_the_top_level_ends_the_script_as_python_does(tmp_path):
    wait = "print('interrupted', flush=True); next(iterator)"
    path = tmp_path / "script.py"
    path.write_text(
        SCRIPT.format(folder=os.path.dirname(__file__), loader=WAITS["a later batch"][0], wait="pass", after=wait)
    )
    script = Script(path)
    try:
        script.wait_for("interrupted")
        time.sleep(0.5)
        script.process.send_signal(signal.SIGINT)
        _, err = script.process.communicate(timeout=10)
        assert script.process.returncode == -signal.SIGINT
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert wait_until(lambda: not script.left(), 2), f"processes are left: {script.left()}"
    finally:
        script.kill_left()


def test_sigterm_leaves_no_process(tmp_path):
    for number in (signal.SIGTERM, signal.SIGKILL):
        path = tmp_path / "script.py"
        path.write_text(
            SCRIPT.format(folder=os.path.dirname(__file__), loader=WAITS["a later batch"][0], wait=NEXT, after="")
        )
        script = Script(path)
        try:
            script.wait_for("^waits$")
            script.process.send_signal(number)
            script.process.wait(10)
            assert wait_until(lambda: not script.left(), 5), f"processes are left: {script.left()}"
        finally:
            script.kill_left()
            script.process.communicate()
