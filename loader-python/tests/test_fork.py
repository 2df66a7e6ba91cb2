"""The start method ``fork``: what workers have of main, also those that replace others, and what they leave alone."""

import enum
import gzip
import io
import mmap
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from loader import DataLoader
from loader._pickling import _by_value
from loader._workers import _worker_program
from processes import Script, all_processes, run, wait_until

class Numbers(torch.utils.data.Dataset):
    """Cannot be pickled."""

    def __init__(self, length):
        self.length, self.offset, self.lock = length, 0, threading.Lock()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with self.lock:
            return index + self.offset


class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)


IS_REPLACED = pytest.mark.filterwarnings(
    "ignore:worker .* another process takes its place:RuntimeWarning", "ignore:.*; trying again:RuntimeWarning"
)


def loader_of(dataset, **arguments):
    given = {"num_workers": 2, "batch_size": 4, "multiprocessing_context": "fork"} | arguments
    return DataLoader(dataset, **given)


def numbers(batches):
    return torch.cat(list(batches)).tolist()


def template_of(iterator):
    """Returns the process that has forked the workers of an iterator."""
    pid = iterator._workers[0].pid
    return next(process.parent for process in all_processes() if process.pid == pid)


@IS_REPLACED
def test_a_worker_that_replaces_another_has_the_dataset_as_iter_has_seen_it():
    dataset = Slow(200)
    batches = iter(loader_of(dataset))
    first = next(batches)
    dataset.offset = 1000
    for worker in batches._workers:
        os.kill(worker.pid, signal.SIGKILL)
    assert first.tolist() + numbers(batches) == list(range(200))
    # The next `iter` sees what main has changed.
    assert numbers(loader_of(dataset)) == list(range(1000, 1200))


@IS_REPLACED
def test_a_worker_that_replaces_another_has_the_directory_and_the_umask_of_the_fork(tmp_path, monkeypatch):
    class Surroundings(Slow):
        def __getitem__(self, index):
            super().__getitem__(index)
            before = os.umask(0o077)
            os.umask(before)
            return f"{os.getcwd()} {before}"

    before, mask = os.getcwd(), os.umask(0o027)
    monkeypatch.chdir(before)
    try:
        batches = iter(loader_of(Surroundings(100), batch_size=None))
        found = {next(batches)}
        os.chdir(tmp_path)
        os.umask(0o002)
        for worker in batches._workers:
            os.kill(worker.pid, signal.SIGKILL)
        assert found | set(batches) == {f"{before} {0o027}"}
    finally:
        os.umask(mask)


def test_classes_of_a_function_are_those_of_main():
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")

    class Sample:
        total = 0

        def __init__(self, index):
            self.index = index

    class Kind(enum.Enum):
        EVEN = 0
        ODD = 1

    class Samples(Numbers):
        def __getitem__(self, kind):
            class OfWorker(Sample):
                pass

            assert kind is Kind.EVEN or kind is Kind.ODD
            Sample.total += 1
            return Sample(kind), OfWorker(kind)

    for _ in range(2):
        Sample.total = 0
        for sample, of_worker in loader_of(Samples(2), batch_size=None, sampler=[Kind.EVEN, Kind.ODD] * 4):
            assert type(sample) is Sample and isinstance(of_worker, Sample)
            assert sample.index in list(Kind) and of_worker.index is sample.index
        assert Sample.total == 0


def test_a_class_of_a_function_is_searched_once():
    class Local:
        pass

    def find():
        assert _by_value._class_at(id(Local), Local.__module__, Local.__qualname__) is Local

    def count(_frame, event, _function):
        nonlocal calls
        calls += event == "c_call"

    find()
    calls = 0
    sys.setprofile(count)
    find()
    sys.setprofile(None)
    assert calls < 10


def test_a_batch_of_another_loader_stays_as_it_was_at_the_fork():
    class Bank(Numbers):
        def __getitem__(self, index):
            return self.batch.sum().item()

    bank = Bank(8)
    values = iter(loader_of(torch.arange(400_000.0).view(100, 4_000), num_workers=1))
    bank.batch = next(values)
    expected = bank.batch.sum().item()
    reads = loader_of(bank, batch_size=None, persistent_workers=True)
    for _ in range(4):
        assert list(reads) == [expected] * 8
        for _ in range(5):
            bank.batch = next(values)


def test_references_to_objects_of_a_manager_are_given_back():
    class Managed(Numbers):
        def __getitem__(self, index):
            return self.shared[index]

    with multiprocessing.Manager() as manager:
        dataset = Managed(4)
        dataset.shared = manager.list(range(4))
        for _ in range(2):
            assert sorted(loader_of(dataset, batch_size=None)) == list(range(4))
        assert "refcount=1" in manager._debug_info()


@pytest.mark.parametrize("stream", [None, io.StringIO(), object()])
def test_the_standard_output_of_main_may_be_anything(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    assert numbers(loader_of(Numbers(8))) == list(range(8))


def test_persistent_workers_keep_the_dataset_of_the_first_epoch():
    dataset = Numbers(40)
    loader = loader_of(dataset, persistent_workers=True)
    assert numbers(loader) == list(range(40))
    dataset.offset = 1000
    # As with PyTorch.
    assert numbers(loader) == list(range(40))


def spare_of(iterator, template):
    """Returns the spare of the template, which it has forked beside the workers of an iterator."""
    workers = {worker.pid for worker in iterator._workers}
    found = [process.pid for process in all_processes() if process.parent == template and process.pid not in workers]
    return found[0] if found else None


@IS_REPLACED
def test_a_spare_takes_the_place_of_the_template():
    dataset = Slow(600)
    batches = iter(loader_of(dataset))
    found = next(batches).tolist()
    dataset.offset = 1000
    for _ in range(3):
        template = template_of(batches)
        assert wait_until(lambda: spare_of(batches, template), 5), "there is no spare"
        os.kill(template, signal.SIGKILL)
        before = [worker.pid for worker in batches._workers]
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        while any(worker.pid in before for worker in batches._workers):
            found += next(batches).tolist()
    assert found + numbers(batches) == list(range(600))


@IS_REPLACED
def test_without_the_template_and_its_spare_workers_go_on_and_are_not_replaced():
    batches = iter(loader_of(Slow(200)))
    found = next(batches).tolist()
    template = template_of(batches)
    assert wait_until(lambda: spare_of(batches, template), 5), "there is no spare"
    os.kill(spare_of(batches, template), signal.SIGKILL)
    os.kill(template, signal.SIGKILL)
    for _ in range(20):
        found += next(batches).tolist()
    assert found == list(range(84))
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the process that forks the workers failed.*begin the epoch again, or resume"):
        while True:
            next(batches)


@IS_REPLACED
def test_a_stream_is_read_in_its_order_after_a_death():
    class Stream(torch.utils.data.IterableDataset):
        def __init__(self):
            self.make = lambda number: number

        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            for number in range(info.id, 400, info.num_workers):
                time.sleep(0.002)
                yield self.make(number)

    undisturbed = numbers(loader_of(Stream()))
    batches = iter(loader_of(Stream()))
    found = next(batches).tolist()
    os.kill(batches._workers[1].pid, signal.SIGKILL)
    assert found + numbers(batches) == undisturbed


def test_a_forked_worker_prints_to_the_streams_of_main(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from loader import DataLoader\n"
        "class Prints:\n"
        "    def __len__(self):\n"
        "        return 3\n"
        "    def __getitem__(self, index):\n"
        "        print('sample', index)\n"
        "        print('problem', index, file=sys.stderr)\n"
        "        return index\n"
        "print('main')\n"
        "assert len(list(DataLoader(Prints(), num_workers=1, multiprocessing_context='fork'))) == 3\n"
    )
    status, out, err = Script(script).end()
    assert (status, out) == (0, "main\nsample 0\nsample 1\nsample 2\n"), err
    assert [line.rpartition("problem")[2] for line in err.splitlines()] == [" 0", " 1", " 2"]


def test_a_thread_of_main_may_print_at_the_fork(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import logging, os, sys, threading, time\n"
        "from loader import DataLoader\n"
        "class Prints:\n"
        "    def __len__(self):\n"
        "        return 4\n"
        "    def __getitem__(self, index):\n"
        "        print('sample', index)\n"
        "        logging.warning('sample %d', index)\n"
        "        return index\n"
        "def begin_to_print():\n"
        "    if os.getpid() != main:\n"
        "        return\n"
        "    threading.Thread(target=sys.stdout.write, args=('x' * 1_000_000 + '\\n',)).start()\n"
        "    time.sleep(0.5)  # The pipe is full, and the thread waits.\n"
        "def begin_to_drain():\n"
        "    if os.getpid() == main:\n"
        "        threading.Thread(target=drain).start()\n"
        "def drain():\n"
        "    while text := os.read(reader, 65536):\n"
        "        found.append(text)\n"
        "found, (reader, writer), main = [], os.pipe(), os.getpid()\n"
        "os.register_at_fork(before=begin_to_print, after_in_parent=begin_to_drain)\n"
        "with open(writer, 'w', buffering=1) as sys.stdout:\n"
        "    logging.basicConfig(stream=sys.stdout, format='log %(message)s')\n"
        "    loader = DataLoader(Prints(), num_workers=2, multiprocessing_context='fork', timeout=30)\n"
        "    began = time.monotonic()\n"
        "    assert len(list(loader)) == 4\n"
        "    assert time.monotonic() - began < 5, 'workers end at once'\n"
        "sys.stdout = sys.__stdout__\n"
        "while not b''.join(found).count(b'x\\n'):\n"
        "    time.sleep(0.1)\n"
        "text = b''.join(found).decode()\n"
        "print(text.count('x'), sorted(text.replace('x', '').split('\\n')))\n"
    )
    lines = [f"{who}sample {index}" for who in ("", "log ") for index in range(4)]
    assert run(script) == f"1000000 {sorted([*lines, '', ''])}\n"


def test_processes_and_finalizers_of_main_stay(tmp_path):
    ended = []
    finalizer = multiprocessing.util.Finalize(None, ended.append, [1], exitpriority=1)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
        try:
            assert numbers(loader_of(Numbers(40))) == list(range(40))
            assert child.is_alive() and not ended
        finally:
            child.kill()
            child.join()
    finalizer.cancel()


@IS_REPLACED
def test_handlers_of_main_do_not_run_in_workers():
    calls = []
    before = signal.signal(signal.SIGTERM, lambda *_: calls.append(os.getpid()))
    try:
        batches = iter(loader_of(Slow(100)))
        found = next(batches).tolist()
        workers = batches._workers
        for worker in workers:
            os.kill(worker.pid, signal.SIGTERM)
        assert wait_until(lambda: not any(worker.is_alive() for worker in workers), 5), "SIGTERM ends workers"
        assert found + numbers(batches) == list(range(100))
        assert calls == []
    finally:
        signal.signal(signal.SIGTERM, before)


def test_workers_block_no_signals():
    class Mask(Numbers):
        def __getitem__(self, index):
            return len(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        assert numbers(loader_of(Mask(4))) == [0] * 4
        assert signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


#: The beginning of scripts that use this file.
HEAD = f"""
import ctypes, os, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from processes import all_processes, wait_until
from test_fork import Slow, loader_of, numbers, spare_of, template_of
"""


def test_sigterm_to_the_process_group_ends_neither_the_template_nor_its_spare(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        HEAD + "os.setpgid(0, 0)\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('main'))\n"
        "batches = iter(loader_of(Slow(400)))\n"
        "found = next(batches).tolist()\n"
        "template = template_of(batches)\n"
        "assert wait_until(lambda: spare_of(batches, template), 5)\n"
        "spare, workers = spare_of(batches, template), batches._workers\n"
        "os.killpg(0, signal.SIGTERM)\n"
        "assert wait_until(lambda: not any(worker.is_alive() for worker in workers), 5)\n"
        "assert found + numbers(batches) == list(range(400))\n"
        "assert {template, spare} <= {process.pid for process in all_processes() if process.state != 'Z'}\n"
    )
    assert run(script) == "main\n"


def test_signals_for_main_end_neither_the_template_nor_the_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        HEAD + "os.setpgid(0, 0)\n"
        "main, arrived = os.getpid(), set()\n"
        "def handle(number, _):\n"
        "    assert os.getpid() == main\n"
        "    arrived.add(number)\n"
        "sent = {signal.SIGQUIT, signal.SIGXCPU, signal.SIGPWR, signal.SIGRTMIN + 3}\n"
        "for number in {*sent, signal.SIGALRM}:\n"
        "    signal.signal(number, handle)\n"
        "batches = iter(loader_of(Slow(400)))\n"
        "found = next(batches).tolist()\n"
        "template, pids = template_of(batches), [worker.pid for worker in batches._workers]\n"
        "for number in sent:\n"
        "    os.killpg(0, number)\n"
        # Workers have main's handler for this one, for their timers.
        "os.kill(template, signal.SIGALRM)\n"
        "assert found + numbers(batches) == list(range(400)) and arrived == sent\n"
        "assert [worker.pid for worker in batches._workers] == pids\n"
        "assert template in {process.pid for process in all_processes() if process.state != 'Z'}\n"
    )
    run(script)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_main_reaps_the_orphans_of_a_template_and_no_child_of_the_program(tmp_path, method):
    """Main is a subreaper, as the first process of a container is."""
    script = tmp_path / "script.py"
    script.write_text(
        HEAD + "from torch_datasets import Slow as Rows\n"
        "def rows(batches):\n"
        "    return [row[0].item() for batch in batches for row in batch]\n"
        "if __name__ == '__main__':\n"
        "    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0\n"
        "    child = os.fork() or os._exit(7)\n"
        f"    batches = iter(loader_of(Rows(400, 0.01, range(400)), multiprocessing_context={method!r}))\n"
        "    found = rows([next(batches)])\n"
        "    template = template_of(batches)\n"
        f"    assert {method == 'forkserver'} or wait_until(lambda: spare_of(batches, template), 5)\n"
        "    os.kill(template, signal.SIGKILL)\n"
        "    os.kill(batches._workers[0].pid, signal.SIGKILL)\n"
        "    assert found + rows(batches) == list(range(400))\n"
        "    del batches\n"
        "    def zombies():\n"
        "        found = list(all_processes())\n"
        "        return [each.pid for each in found if (each.parent, each.state) == (os.getpid(), 'Z')]\n"
        "    wait_until(lambda: zombies() == [child], 5)\n"
        "    assert zombies() == [child], (zombies(), child)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    # With forkserver, two templates import PyTorch, one after the other.
    assert run(script, seconds=100) == "7\n"


def test_files_may_have_the_numbers_of_closed_standard_streams(tmp_path):
    script, data = tmp_path / "script.py", tmp_path / "data"
    data.write_text("content")
    script.write_text(
        "import sys\n"
        "files = open(sys.argv[1]), open(sys.argv[1])\n"
        "assert [file.fileno() for file in files] == [0, 2]\n"
        "from loader import DataLoader\n"
        "class Files:\n"
        "    def __len__(self):\n"
        "        return 2\n"
        "    def __getitem__(self, index):\n"
        "        return files[index].read()\n"
        "print(list(DataLoader(Files(), batch_size=None, num_workers=1, multiprocessing_context='fork')))\n"
    )
    command = ["sh", "-c", 'exec "$0" "$@" <&- 2>&-', sys.executable, script, data]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "['content', 'content']\n")


def test_an_open_file_of_the_dataset_gives_a_warning(tmp_path):
    path, dataset = tmp_path / "data", Numbers(8)
    with gzip.open(path, "wb") as dataset.written:
        dataset.written.write(b"content")
    with open(path, "rb") as dataset.file, gzip.open(path) as dataset.packed:
        with pytest.warns(RuntimeWarning, match="open file in its attribute 'file' and 'packed'.*worker_init_fn"):
            assert numbers(loader_of(dataset)) == list(range(8))
        # A worker alone has the position to itself. A `RuntimeWarning` fails the test.
        assert numbers(loader_of(dataset, num_workers=1)) == list(range(8))


def test_what_has_no_position_gives_no_warning(tmp_path):
    path, dataset = tmp_path / "data", Numbers(8)
    path.write_text("content")
    dataset.texts, dataset.bytes = io.StringIO("text"), io.BytesIO(b"bytes")
    with open(path) as dataset.closed:
        pass
    ours, theirs = socket.socketpair()
    with open(path, "a") as dataset.log, open(path, "rb") as file, ours as dataset.socket, theirs:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as dataset.map, ours.makefile() as dataset.stream:
            assert numbers(loader_of(dataset)) == list(range(8))


def test_forked_workers_load_while_threads_of_main_are_busy():
    """Threads of this loader and of Python that allocate, write and begin epochs of their own meanwhile."""
    stop, problems = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                assert numbers(loader_of(Numbers(20), num_workers=1)) == list(range(20))
                sum(len(str(number)) for number in range(2000))
        except BaseException as error:
            problems.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                assert numbers(loader_of(Numbers(40), timeout=30)) == list(range(40))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert problems == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_main(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "from test_fork import Slow, loader_of\n"
        "batches = iter(loader_of(Slow(4000)))\nnext(batches)\nprint('begun', flush=True)\nlist(batches)\n"
    )
    script = Script(script)
    try:
        script.wait_for("^begun$")
        assert wait_until(lambda: len(script.left()) == 4, 5), "a template, its spare and two workers"
        script.process.send_signal(number)
        script.process.wait(10)
        assert wait_until(lambda: not script.left(), 5), f"processes are left: {script.left()}"
    finally:
        script.kill_left()
        script.process.communicate()


def test_a_refused_fork_is_an_error_of_iter(monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    loader = loader_of(Numbers(40))
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        iter(loader)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_an_interpreter_and_pidfds_are_needed_only_to_start_one(monkeypatch):
    monkeypatch.setattr(_worker_program, "interpreter", lambda: pytest.fail("main starts no interpreter"))
    assert numbers(loader_of(Numbers(8))) == list(range(8))
    monkeypatch.setattr(os, "pidfd_open", lambda pid: pytest.fail("main starts no worker"))
    assert numbers(DataLoader(Numbers(8), batch_size=4)) == list(range(8))


def test_set_start_method_chooses_fork(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "from loader import DataLoader\n"
        "class Values:\n"
        "    def __len__(self):\n"
        "        return 4\n"
        "    def __getitem__(self, index):\n"
        "        return VALUES[index]\n"
        "if __name__ == '__main__':\n"
        "    VALUES = [5, 6, 7, 8]\n"
        "    multiprocessing.set_start_method('fork')\n"
        "    print([int(value) for value in DataLoader(Values(), num_workers=2)])\n"
    )
    assert run(script) == "[5, 6, 7, 8]\n"
