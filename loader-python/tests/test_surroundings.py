"""Programs in surroundings that hide main from its workers, or that close the loader's descriptors."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing
import sys

import numpy as np
from loader import DataLoader


class Constant:
    def __init__(self, value):
        self.rows = np.full((40, 2_000), value, np.float32)
        self.reader, writer = multiprocessing.Pipe()
        writer.send("written by main")
        writer.close()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index == 0:
            print(self.reader.recv(), file=sys.stderr, flush=True)
        return self.rows[index]


def collate(samples):
    return np.stack(samples)


if __name__ == "__main__":
    PREPARE
    kept = []
    for value in (111.0, 222.0):
        batches = DataLoader(
            Constant(value), batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context="METHOD"
        )
        print(*(f"{batch.min()} {batch.max()}" for batch in batches), flush=True)
"""
EXPECTED = "".join(" ".join([f"{value} {value}"] * 10) + "\n" for value in (111.0, 222.0))

#: Makes `/proc/PID/fd` of this process readable by root alone.
NOT_DUMPABLE = "import ctypes; assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    "prepare, starter",
    [
        (NOT_DUMPABLE, []),
        # Main's process id is that of another process in the `/proc` of the outer namespace.
        ("pass", ["unshare", "--pid", "--fork"]),
        ("pass", ["unshare", "--pid", "--fork", "--mount-proc"]),
    ],
    ids=["not dumpable", "outer /proc", "own /proc"],
)
def test_workers_get_the_arrays_and_the_pipes_of_their_own_main(tmp_path, prepare, starter, method):
    if starter and os.geteuid() != 0:
        pytest.skip("SKIPPED: only root may make a namespace")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("PREPARE", prepare).replace("METHOD", method))
    found = subprocess.run([*starter, sys.executable, script], capture_output=True, text=True, timeout=120)
    assert found.stdout == EXPECTED, found.stderr
    assert found.stderr.count("written by main") == 2


CLOSING = """
import os
import sys

import numpy as np
from loader import DataLoader


class Rows:
    def __init__(self):
        self.rows = np.arange(400_000, dtype=np.float32).reshape(400, 1_000)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def read(batches, name):
    # More files than the loader has descriptors, so that some get the numbers of those that were closed.
    logs = [open(f"{name}-{number}", "w", buffering=1) for number in range(60)]
    for epoch in range(2):
        for number, batch in enumerate(batches):
            assert (batch.numpy()[:, 0] == np.arange(32 * number, min(32 * number + 32, 400)) * 1_000).all()
            for log in logs:
                log.write(f"epoch {epoch}, batch {number}\\n")
    for log in logs:
        log.close()


def check(name):
    expected = "".join(f"epoch {epoch}, batch {number}\\n" for epoch in range(2) for number in range(13))
    for number in range(60):
        found = open(f"{name}-{number}").read()
        assert found == expected, (number, found)
    print(name, "as written", flush=True)


def loader(method):
    return DataLoader(
        Rows(), batch_size=32, num_workers=2, multiprocessing_context=method, persistent_workers=PERSISTENT
    )

"""
DAEMON = """
if __name__ == "__main__":
    batches = loader(sys.argv[1])
    if BEGUN:
        next(iter(batches))
    child = os.fork()
    if child == 0:
        os.setsid()
        os.closerange(3, 1024)
        batches = loader(sys.argv[1]) if BEGUN else batches
        read(batches, "daemon")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    check("daemon")
    # The loader of main is as it was.
    read(batches, "main")
    check("main")
"""
CLOSED = """
if __name__ == "__main__":
    batches = loader(sys.argv[1])
    if BEGUN:
        iterator = iter(batches)
        next(iterator)
    os.closerange(3, 1024)
    read(loader(sys.argv[1]), "closed")
    check("closed")
    if BEGUN:
        try:
            list(iterator)
            sys.exit("no error")
        except (OSError, RuntimeError) as error:
            assert "the program has closed descriptor" in str(error), error
        del iterator, batches
        read(loader(sys.argv[1]), "after")
        check("after")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("is_begun", [False, True], ids=["new loader", "begun loader"])
@pytest.mark.parametrize("program", [DAEMON, CLOSED], ids=["daemon", "closed"])
def test_a_program_may_close_all_descriptors(tmp_path, program, is_begun, method):
    script = tmp_path / "script.py"
    text = CLOSING + program
    script.write_text(text.replace("BEGUN", str(is_begun)).replace("PERSISTENT", str(not is_begun)))
    found = subprocess.run(
        [sys.executable, script, method], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    names = ["daemon", "main"] if program is DAEMON else ["closed", "after"] if is_begun else ["closed"]
    assert found.stdout == "".join(f"{name} as written\n" for name in names), found.stderr
    assert found.returncode == 0, found.stderr


STREAMS = """
import os
import sys

from loader import DataLoader


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index


if __name__ == "__main__":
    for epoch in range(2):
        batches = DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context=sys.argv[2])
        assert sum(len(batch) for batch in batches) == 64
        # As a C library prints.
        os.write(2, b"a message\\n")
    open(sys.argv[1], "w").write("read")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_standard_streams_may_be_closed(tmp_path, closed, method):
    script, result = tmp_path / "script.py", tmp_path / "result"
    script.write_text(STREAMS)
    closing = " ".join(f"{stream}>&-" for stream in closed)
    found = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {closing}', sys.executable, script, result, method],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0 and result.read_text() == "read", found.stderr
