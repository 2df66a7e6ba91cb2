"""Programs in surroundings that hide main from its workers, or that close the loader's descriptors."""

import os
import pathlib
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


ROWS = """
import ctypes
import os
import sys

# It takes long to import.
sys.modules["torch"] = None

import numpy as np
from loader import DataLoader


class Rows:
    def __init__(self):
        self.rows = np.arange(40 * 4_000, dtype=np.float32).reshape(40, 4_000)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


if __name__ == "__main__":
    PREPARE
    batches = DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="METHOD")
    for epoch in range(2):
        assert [batch[0, 0] // 4_000 for batch in batches] == list(range(0, 40, 4))
    print("all batches", flush=True)
"""


def run_rows(folder, method, prepare="pass", starter=()):
    script = folder / "script.py"
    script.write_text(ROWS.replace("PREPARE", prepare).replace("METHOD", method))
    return subprocess.run(
        [*starter, sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=120
    )


#: Takes from root the right to enter any directory.
NO_OVERRIDE = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    "prepare, starter",
    [
        ('os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")', []),
        ('os.mkdir("closed"); os.chdir("closed"); os.chmod(".", 0)', NO_OVERRIDE),
    ],
    ids=["removed", "closed"],
)
def test_the_working_directory_need_not_be_entered_again(tmp_path, prepare, starter, method):
    found = run_rows(tmp_path, method, prepare, starter)
    assert found.stdout == "all batches\n", found.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: only root may make a namespace")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_main_that_can_start_no_thread_says_why(tmp_path, method):
    found = run_rows(tmp_path, method, "assert ctypes.CDLL(None).unshare(0x2000_0000) == 0")
    assert "the program has called unshare(CLONE_NEWPID)" in found.stderr, found.stderr


STOPPED = """
import os
import signal
import sys

# It takes long to import.
sys.modules["torch"] = None

import numpy as np
from loader import DataLoader


class Stops:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 2 and not os.path.exists("stopped"):
            open("stopped", "w").close()
            os.kill(os.getpid(), signal.SIGSTOP)
        return index


class Grows:
    kept = []

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.kept.append(np.ones(40 << 17))
        return index


if __name__ == "__main__":
    print(sum(len(batch) for batch in DataLoader(Stops(), batch_size=2, num_workers=1)))
    loader = DataLoader(Grows(), batch_size=2, num_workers=1, worker_memory_limit="200 MiB")
    print(sum(len(batch) for batch in loader), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED: only root may make a namespace")
def test_workers_are_not_taken_for_other_processes_of_the_outer_proc(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STOPPED)
    command = ["unshare", "--pid", "--fork", sys.executable, script]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.stdout == "8\n12\n", found.stderr
    assert "it had been stopped for 10" in found.stderr and "worker_memory_limit" in found.stderr, found.stderr


LIMITED = """
import resource
import sys

# It takes long to import.
sys.modules["torch"] = None

from loader import DataLoader


class Texts:
    def __init__(self):
        self.texts = [bytes([index % 250]) * 2_000 for index in range(20_000)]

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


class Large(Texts):
    def __init__(self):
        pass

    def __getitem__(self, index):
        return len(bytearray(1 << 30))


if __name__ == "__main__":
    texts = Texts()
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
    for dataset, room in ((texts, 10 << 10), (Large(), 200 << 10)):
        resource.setrlimit(resource.RLIMIT_DATA, ((used + room) << 10, resource.RLIM_INFINITY))
        try:
            list(DataLoader(dataset, num_workers=1, multiprocessing_context="forkserver"))
        except MemoryError as error:
            print(str(error).splitlines()[-1], f"limit: `ulimit -d` is {used + room} KiB")
"""


def test_an_error_of_memory_names_the_limit(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LIMITED)
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    main, worker = (line.split(" limit: ") for line in found.stdout.splitlines())
    assert main[0].startswith("main has no memory for the pickle of the dataset") and main[1] in main[0], main
    assert worker[0].startswith("MemoryError") and worker[1] in worker[0], worker


is_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="SKIPPED: the numbers of the calls are those of x86-64")
FORBIDDEN = str(pathlib.Path(__file__).with_name("forbidden.py"))


@is_x86
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("call", ["pidfd_open", "sched_setaffinity", "madvise"])
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_a_sandbox_may_forbid_what_the_loader_can_do_without(tmp_path, call, error, method):
    found = run_rows(tmp_path, method, starter=[sys.executable, FORBIDDEN, call, error])
    assert found.stdout == "all batches\n", found.stderr
    assert "Error" not in found.stderr


@is_x86
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("call", ["fallocate", "fcntl", "memfd_create", "setsockopt", "socketpair"])
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_the_error_names_a_call_that_a_sandbox_forbids(tmp_path, call, error, method):
    found = run_rows(tmp_path, method, starter=[sys.executable, FORBIDDEN, call, error])
    last = found.stderr.splitlines()[-1]
    assert f"forbids the system call {call}" in last and "num_workers" in last, found.stderr
