"""The program of `test_worker_world.py`: writes what main has and what a worker has, property by property. The test
adds the call of :func:`begin`, and starts the program in each way in which a program can be started."""

import asyncio
import ctypes
import decimal
import enum
import gc
import json
import locale
import logging
import mmap
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from multiprocessing import shared_memory
from pathlib import Path

import extra_registry  # noqa: F401  registers a reader, as hdf5plugin and pillow_heif do
import numpy
import registry
import torch

# What a program changes at the top of its script.
registry.TRUNCATED = True
registry.load = lambda: "replaced"
logging.getLogger("top").setLevel(33)
MISSING = object()


class Kind(enum.Enum):
    EVEN = 0


class Parts:
    """What `pickle` cannot send."""

    def __init__(self, counter):
        self.file = open(__import__("registry").__file__)
        self.file.readline()
        self.lock = threading.Lock()
        self.make = lambda: "lambda"
        self.rows = (row for row in range(3))
        self.counter = counter
        self.mapping = mmap.mmap(-1, 4096)

        class Inner:
            pass

        self.inner = Inner()


class World(torch.utils.data.Dataset):
    def __init__(self, context, names):
        self.names = names
        self.missing, self.kind = MISSING, Kind.EVEN
        self.shared = torch.zeros(2).share_memory_()
        self.counter, self.event, self.queue = context.Value("i", 0), context.Event(), context.Queue()
        self.parts = Parts(context.Value("i", 0)) if context.get_start_method() == "fork" else None
        self.main = os.getpid()
        self.hashed, self.order = hash("name"), list({"a", "b", "c", "d", "e"})
        self.authkey = bytes(multiprocessing.current_process().authkey)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return measure(self)


def measure(world):
    found = {}
    for name, of in (PROPERTIES | OF_PARTS if world.parts else PROPERTIES).items():
        try:
            found[name] = of(world)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def current_umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def is_open(descriptor):
    """Returns whether a descriptor is that of the file that main has opened."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == registry.__file__
    except FileNotFoundError:
        return False


def status(*names):
    lines = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [lines[name] for name in names]


def read_segment(name):
    """Returns the first byte of a segment of shared memory, which it attaches by name."""
    segment = shared_memory.SharedMemory(name)
    value = segment.buf[0]
    segment.close()
    return value


def flushes_denormal_numbers():
    return (torch.tensor([1e-310], dtype=torch.float64) * 1).item() == 0


def variable_of_c(name):
    """Returns an environment variable as C libraries see it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return (getenv(name) or b"").decode()


def handler(number):
    found = signal.getsignal(number)
    return getattr(found, "__name__", type(found).__name__ if callable(found) else str(found))


async def answer():
    return "answer"


def counted(world, counter):
    with counter.get_lock():
        counter.value += 1
    return "counted"


def start_a_process():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    return process.exitcode


PROPERTIES = {
    # The program and its modules.
    "a reader that an import has registered": lambda world: "heic" in registry.READERS,
    "a value at the top of the script": lambda world: registry.TRUNCATED,
    "a function that the top of the script replaces": lambda world: registry.load(),
    "a level of logging at the top of the script": lambda world: logging.getLogger("top").level,
    "a value that main sets in a module": lambda world: registry.SIZE,
    "a global that main sets": lambda world: globals().get("CHOSEN"),
    "a module that main imports": lambda world: "late_registry" in sys.modules,
    "a sentinel of the script": lambda world: world.missing is MISSING,
    "a member of an enum of the script": lambda world: world.kind is Kind.EVEN,
    "the module of the class": lambda world: type(world).__module__,
    "the name of __main__": lambda world: sys.modules["__main__"].__name__,
    "the file of __main__": lambda world: getattr(sys.modules["__main__"], "__file__", None),
    "the spec of __main__": lambda world: getattr(sys.modules["__main__"].__spec__, "name", None),
    "globals of __main__": lambda world: hasattr(sys.modules["__main__"], "Kind"),
    # The interpreter.
    "sys.argv": lambda world: sys.argv,
    "sys.path": lambda world: sys.path,
    "sys.flags": lambda world: str(sys.flags),
    "sys.warnoptions": lambda world: sys.warnoptions,
    "sys._xoptions": lambda world: sys._xoptions,
    "sys.executable": lambda world: sys.executable,
    "sys.prefix": lambda world: sys.prefix,
    "sys.dont_write_bytecode": lambda world: sys.dont_write_bytecode,
    "the limit of recursion": lambda world: sys.getrecursionlimit(),
    "the interval of thread switches": lambda world: sys.getswitchinterval(),
    "digits of integers": lambda world: sys.get_int_max_str_digits(),
    "the excepthook": lambda world: sys.excepthook.__name__,
    "the profile function": lambda world: sys.getprofile() is not None,
    "thresholds of the garbage collector": lambda world: gc.get_threshold(),
    "filters of warnings": lambda world: len(warnings.filters),
    "a level of logging that main sets": lambda world: logging.getLogger("world").level,
    "handlers of logging": lambda world: len(logging.getLogger("world").handlers),
    "the locale": lambda world: locale.setlocale(locale.LC_ALL),
    "the time zone": lambda world: time.tzname,
    "decimal places": lambda world: decimal.getcontext().prec,
    "a context variable": lambda world: registry.CONTEXT.get(),
    "a value of the thread": lambda world: getattr(registry.LOCAL, "value", None),
    "the thread": lambda world: threading.current_thread().name,
    "the main thread": lambda world: threading.current_thread() is threading.main_thread(),
    "a loop of asyncio": lambda world: asyncio.run(answer()),
    "threads": lambda world: threading.active_count(),
    "the encoding of standard output": lambda world: (sys.stdout.encoding, sys.stdout.errors),
    "standard input": lambda world: sys.stdin.read(),
    "descriptor 0": lambda world: os.read(0, 1).decode(),
    # Random numbers.
    "hashes of strings": lambda world: hash("name") == world.hashed,
    "the order of a set": lambda world: list({"a", "b", "c", "d", "e"}) == world.order,
    "Python's random numbers": lambda world: random.random(),
    "NumPy's random numbers": lambda world: numpy.random.random(),
    "PyTorch's random numbers": lambda world: torch.rand(1).item(),
    # PyTorch and NumPy.
    "deterministic algorithms": lambda world: torch.are_deterministic_algorithms_enabled(),
    "gradients": lambda world: torch.is_grad_enabled(),
    "autocast": lambda world: torch.is_autocast_enabled("cpu"),
    "the default dtype": lambda world: str(torch.get_default_dtype()),
    "the default device": lambda world: str(torch.get_default_device()),
    "the precision of matrix products": lambda world: torch.get_float32_matmul_precision(),
    "denormal numbers": lambda world: flushes_denormal_numbers(),
    "the sharing strategy": lambda world: torch.multiprocessing.get_sharing_strategy(),
    "threads of OpenMP": lambda world: torch.get_num_threads(),
    "threads between operations": lambda world: torch.get_num_interop_threads(),
    "errors of NumPy": lambda world: numpy.geterr(),
    "digits of NumPy": lambda world: numpy.get_printoptions()["precision"],
    "the number of the worker": lambda world: torch.utils.data.get_worker_info().id,
    "the number of workers": lambda world: torch.utils.data.get_worker_info().num_workers,
    "the seed of the worker": lambda world: torch.utils.data.get_worker_info().seed,
    "the dataset of the worker": lambda world: torch.utils.data.get_worker_info().dataset is world,
    # Processes of `multiprocessing` and their objects.
    "the name of the process": lambda world: multiprocessing.current_process().name,
    "a daemon": lambda world: multiprocessing.current_process().daemon,
    "the parent process": lambda world: multiprocessing.parent_process().pid == world.main,
    "the name of the parent process": lambda world: multiprocessing.parent_process().name,
    "the parent in the system": lambda world: os.getppid() == world.main,
    "the authentication key": lambda world: multiprocessing.current_process().authkey == world.authkey,
    "the start method": lambda world: multiprocessing.get_start_method(allow_none=True),
    "children": lambda world: len(multiprocessing.active_children()),
    "a process of its own": lambda world: start_a_process(),
    "a Value": lambda world: counted(world, world.counter),
    "an Event": lambda world: world.event.set(),
    "a Queue": lambda world: world.queue.put("item"),
    "a shared tensor": lambda world: world.shared[0].fill_(7).item(),
    "a segment of main": lambda world: read_segment(world.names["segment"]),
    "a segment of another process": lambda world: read_segment(world.names["other segment"]),
    # The process.
    "the environment": lambda world: dict(sorted(os.environ.items())),
    "the environment of C": lambda world: variable_of_c(b"WORLD"),
    "the directory": lambda world: os.getcwd(),
    "the umask": lambda world: current_umask(),
    "limits": lambda world: {
        name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
    },
    "a descriptor": lambda world: is_open(world.names["descriptor"]),
    "an inheritable descriptor": lambda world: is_open(world.names["inheritable"]),
    "the process group": lambda world: os.getpgrp(),
    "the session": lambda world: os.getsid(0),
    "the priority": lambda world: os.getpriority(os.PRIO_PROCESS, 0),
    "the scheduler": lambda world: os.sched_getscheduler(0),
    "CPUs": lambda world: sorted(os.sched_getaffinity(0)),
    "the preference of the OOM killer": lambda world: Path("/proc/self/oom_score_adj").read_text().strip(),
    "the cgroup": lambda world: Path("/proc/self/cgroup").read_text(),
    "namespaces": lambda world: {
        name: os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))
    },
    "the user": lambda world: status("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs"),
    "the name in process lists": lambda world: Path("/proc/self/comm").read_text().strip(),
    "blocked signals": lambda world: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "SIGALRM": lambda world: handler(signal.SIGALRM),
    "SIGUSR1": lambda world: handler(signal.SIGUSR1),
    "SIGTERM": lambda world: handler(signal.SIGTERM),
    "SIGINT": lambda world: handler(signal.SIGINT),
    "SIGPIPE": lambda world: handler(signal.SIGPIPE),
    "SIGCHLD": lambda world: handler(signal.SIGCHLD),
}

#: Only forks of main have these.
OF_PARTS = {
    "the position of a file": lambda world: world.parts.file.tell(),
    "a lock": lambda world: world.parts.lock.acquire(blocking=False),
    "a lambda": lambda world: world.parts.make(),
    "a generator": lambda world: next(world.parts.rows),
    "a class of a function": lambda world: type(world.parts.inner).__qualname__,
    "a counter of main": lambda world: counted(world, world.parts.counter),
    "a shared mapping": lambda world: world.parts.mapping.write(b"written"),
}


def on_signal(number, frame):
    pass


def excepthook(*arguments):
    sys.__excepthook__(*arguments)


def change_settings():
    """Changes what a program changes under its guard."""
    global CHOSEN
    registry.SIZE, CHOSEN = 224, "chosen"
    __import__("late_registry")
    sys.path.append("/added")
    sys.argv.append("added")
    sys.dont_write_bytecode = True
    sys.setrecursionlimit(4321)
    sys.setswitchinterval(0.004)
    sys.set_int_max_str_digits(5000)
    sys.excepthook = excepthook
    gc.set_threshold(701, 11, 12)
    warnings.simplefilter("ignore", BytesWarning)
    logging.getLogger("world").setLevel(33)
    logging.getLogger("world").addHandler(logging.NullHandler())
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    os.environ["WORLD"], os.environ["TZ"] = "set by main", "JST-9"
    time.tzset()
    decimal.getcontext().prec = 5
    registry.CONTEXT.set("set by main")
    registry.LOCAL.value = "set by main"
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)
    torch.set_autocast_enabled("cpu", True)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.set_num_threads(2)
    torch.set_num_interop_threads(3)
    numpy.seterr(all="raise")
    numpy.set_printoptions(precision=3)
    multiprocessing.current_process().name = "main"
    os.chdir("/")
    os.umask(0o027)
    limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit - 1, maximum))
    os.nice(1)
    for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, on_signal)


def as_it_is(value):
    return value


def begin():
    """Loads, and writes what a worker and main have to the file that the test names."""
    result, library = os.environ.pop("WORLD_RESULT"), os.environ.pop("WORLD_LIBRARY")
    context = multiprocessing.get_context(os.environ.pop("WORLD_METHOD"))
    if library == "loader":
        from loader import DataLoader
    else:
        from torch.utils.data import DataLoader
    change_settings()
    ended = threading.Event()
    threading.Thread(target=ended.wait, daemon=True).start()
    segment = shared_memory.SharedMemory(create=True, size=64)
    segment.buf[0] = 5
    other = Path(f"/dev/shm/world-{os.getpid()}")
    other.write_bytes(bytes([6] * 64))
    descriptor = os.open(registry.__file__, os.O_RDONLY)
    names = {
        "segment": segment.name,
        "other segment": other.name,
        "descriptor": descriptor,
        "inheritable": os.dup2(descriptor, 99, inheritable=True),
    }
    torch.manual_seed(7)
    world = World(context, names)
    # A function in C, which makes the program hardly slower.
    sys.setprofile(slice)
    batches = DataLoader(
        world, batch_size=None, num_workers=1, multiprocessing_context=context, collate_fn=as_it_is
    )
    [of_worker] = batches
    # A tracker of resources removes what is left when its processes have ended.
    time.sleep(0.2)
    after = {
        "a Value afterwards": (world.counter.value, 1),
        "an Event afterwards": (world.event.is_set(), True),
        "a Queue afterwards": (world.queue.get(timeout=10), "item"),
        "a shared tensor afterwards": (world.shared.tolist(), [7, 0]),
        "a segment of main afterwards": (os.path.exists(f"/dev/shm/{segment.name}"), True),
        "a segment of another process afterwards": (other.exists(), True),
    }
    if world.parts:
        after["a counter of main afterwards"] = (world.parts.counter.value, 1)
        after["a shared mapping afterwards"] = (world.parts.mapping[:7].decode(), "written")
    of_main = measure(World(context, names))
    sys.setprofile(None)
    of_worker |= {name: value for name, (value, _) in after.items()}
    of_main |= {name: value for name, (_, value) in after.items()}
    Path(result).write_text(json.dumps({"main": of_main, "worker": of_worker}, default=repr))
    segment.close()
    segment.unlink()
    other.unlink(missing_ok=True)
    ended.set()
