"""What a worker has, property by property, for each start method and each way in which a program can be started: equal
to what a worker of PyTorch's loader has, or in the table of differences."""

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes import MARK, Script

pytest.importorskip("torch", reason="SKIPPED: PyTorch is not installed")
pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")

METHODS = ("fork", "forkserver", "spawn")
#: Ways in which PyTorch's workers can find the class of the dataset.
IMPORTABLE = ("script", "module", "package", "pytest")
#: Ways in which PyTorch's workers can only be forks. Here they are compared with main.
NOT_IMPORTABLE = ("unguarded", "command", "notebook")


class Difference(NamedTuple):
    """A row of the table: properties that differ from those of a worker of PyTorch, or of main where PyTorch's loader
    cannot run."""

    #: Which side has what main has: ``"loader"``, ``"reference"`` or ``"neither"``.
    side: str
    why: str
    properties: tuple[str, ...]
    methods: tuple[str, ...] = METHODS
    ways: tuple[str, ...] = IMPORTABLE + NOT_IMPORTABLE


FRESH = ("forkserver", "spawn")

DIFFERENCES = (
    Difference(
        "loader",
        "A worker of PyTorch takes the text that is meant for main.",
        ("descriptor 0",),
    ),
    Difference(
        "neither",
        "The names show which loader has started the process.",
        ("the name of the process", "the name in process lists"),
    ),
    Difference(
        "loader",
        "A worker may start processes of its own, and they begin as those of main.",
        ("a daemon", "a process of its own"),
    ),
    Difference(
        "neither",
        "The loader does not choose a start method for the processes that a worker starts. PyTorch's worker has its own.",
        ("the start method",),
    ),
    Difference(
        "neither",
        "The parent of a forked worker is the process that forks all workers.",
        ("the parent in the system",),
    ),
    Difference(
        "reference",
        "The OOM killer prefers workers to main.",
        ("the preference of the OOM killer",),
    ),
    Difference(
        "reference",
        "Signals that a terminal or a launcher sends are meant for main.",
        ("SIGUSR1", "SIGTERM", "SIGINT"),
    ),
    Difference(
        "loader",
        "Workers have main's default dtype.",
        ("the default dtype",),
        FRESH,
    ),
    Difference(
        "neither",
        "Random numbers of the default dtype.",
        ("PyTorch's random numbers",),
        FRESH,
        IMPORTABLE,
    ),
    # The following rows are about workers that are not forks of main.
    Difference(
        "neither",
        "The interpreter starts with `-P`, so that no file of the working directory takes the place of a module.",
        ("sys.flags",),
        FRESH,
    ),
    Difference(
        "neither",
        "The template ignores a warning about its forks.",
        ("filters of warnings",),
        FRESH,
    ),
    Difference(
        "reference",
        "Workers do not import a program that would train there, so they lack what its statements do.",
        (
            "a value at the top of the script",
            "a function that the top of the script replaces",
            "a level of logging at the top of the script",
            "globals of __main__",
        ),
        FRESH,
        NOT_IMPORTABLE,
    ),
    Difference(
        "reference",
        "Workers do not import such a program, so their `__main__` has no file.",
        ("the file of __main__",),
        FRESH,
    ),
    Difference(
        "reference",
        "Only forks have what main has set when it runs.",
        (
            "a value that main sets in a module",
            "a global that main sets",
            "sys.dont_write_bytecode",
            "the limit of recursion",
            "the interval of thread switches",
            "digits of integers",
            "the profile function",
            "thresholds of the garbage collector",
            "a level of logging that main sets",
            "handlers of logging",
            "the locale",
            "decimal places",
            "a context variable",
            "a value of the thread",
            "hashes of strings",
            "the order of a set",
            "deterministic algorithms",
            "gradients",
            "autocast",
            "the precision of matrix products",
            "denormal numbers",
            "the sharing strategy",
            "threads between operations",
            "errors of NumPy",
            "digits of NumPy",
            "a descriptor",
            "an inheritable descriptor",
            "SIGALRM",
        ),
        FRESH,
        NOT_IMPORTABLE,
    ),
    Difference(
        "reference",
        "A worker has one thread, which uses one thread of OpenMP.",
        ("threads", "threads of OpenMP"),
        FRESH,
        NOT_IMPORTABLE,
    ),
    Difference(
        "reference",
        "Main's standard input is meant for main.",
        ("standard input",),
        FRESH,
        NOT_IMPORTABLE,
    ),
    Difference(
        "reference",
        "An empty entry of `sys.path` becomes the directory in which main was started, as with `multiprocessing`.",
        ("sys.path",),
        FRESH,
        ("command",),
    ),
    Difference(
        "reference",
        "The worker is not within the loop of asyncio of the notebook.",
        ("a loop of asyncio",),
        FRESH,
        ("notebook",),
    ),
    Difference(
        "reference",
        "Main has neither the random numbers of a worker nor the information about it.",
        (
            "Python's random numbers",
            "NumPy's random numbers",
            "PyTorch's random numbers",
            "the number of the worker",
            "the number of workers",
            "the seed of the worker",
            "the dataset of the worker",
            "the parent process",
            "the name of the parent process",
        ),
        FRESH,
        NOT_IMPORTABLE,
    ),
)

PROGRAM = (Path(__file__).parent / "world_program.py").read_text()
GUARDED = PROGRAM + '\n\nif __name__ == "__main__":\n    begin()\n'
REGISTRY = """
import contextvars
import threading

READERS = {}
SIZE = 32
TRUNCATED = False
CONTEXT = contextvars.ContextVar("CONTEXT", default="default")
LOCAL = threading.local()


def load():
    return "own"
"""
#: Runs its cells as IPython does: in a `__main__` of its own, within a loop of asyncio.
NOTEBOOK = """
import asyncio
import sys
import types

sys.modules["__main__"] = types.ModuleType("__main__")


async def run():
    for number, cell in enumerate((open("/FOLDER/program.py").read(), "begin()")):
        exec(compile(cell, f"<ipython-input-{number}>", "exec"), sys.modules["__main__"].__dict__)


asyncio.run(run())
"""


def write_programs(folder: Path) -> dict[str, list[Any]]:
    """Writes the program for each way. Returns the arguments of the interpreter by way."""
    package = folder / "package"
    package.mkdir()
    for name, text in {
        "registry.py": REGISTRY,
        "extra_registry.py": "import registry\nregistry.READERS['heic'] = True\n",
        "late_registry.py": "",
        "program.py": PROGRAM,
        "script.py": GUARDED,
        "imports.py": "import program\n\nif __name__ == '__main__':\n    program.begin()\n",
        "unguarded.py": PROGRAM + "\n\nbegin()\n",
        "notebook.py": NOTEBOOK.replace("/FOLDER", str(folder)),
        "test_world.py": PROGRAM + "\n\ndef test_world():\n    begin()\n",
        "package/__init__.py": "",
        "package/train.py": GUARDED,
        "empty.ini": "",
    }.items():
        (folder / name).write_text(text)
    pytest_arguments = ["-q", "-p", "no:cacheprovider", "-c", folder / "empty.ini", folder / "test_world.py"]
    return {
        "script": [folder / "script.py", "chosen"],
        "module": [folder / "imports.py", "chosen"],
        "unguarded": [folder / "unguarded.py", "chosen"],
        "command": ["-c", PROGRAM + "\n\nbegin()\n"],
        "package": ["-m", "package.train"],
        "notebook": [folder / "notebook.py"],
        "pytest": ["-m", "pytest", *pytest_arguments],
    }


@functools.cache
def worlds(way: str, method: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns what main and a worker have, by library and ``"main"`` or ``"worker"``."""
    found, scripts = {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = write_programs(folder)[way]
        paths = os.pathsep.join([name, os.environ.get("PYTHONPATH", "")])
        for library in ("loader", "torch") if method == "fork" or way in IMPORTABLE else ("loader",):
            scripts[library] = Script(
                "-W", "ignore::BytesWarning", "-X", "faulthandler", *arguments, text="text of main", PYTHONPATH=paths,
                PYTHONDONTWRITEBYTECODE="", WORLD_RESULT=str(folder / library), WORLD_LIBRARY=library, WORLD_METHOD=method,
            )  # fmt: skip
        for library, script in scripts.items():
            status, out, err = script.end(110)
            assert status == 0, f"{library}:\n{out}\n{err}"
            found[library] = json.loads((folder / library).read_text())
    for world in (world for of_library in found.values() for world in of_library.values()):
        world["the environment"].pop(MARK)
    return found


def differences(way: str, method: str) -> dict[str, str]:
    """Returns the properties that differ, and which side has what main has."""
    found = worlds(way, method)
    loader, torch = found["loader"], found.get("torch")
    main = loader["main"]
    reference = torch["worker"] if torch else main
    assert len(loader["worker"]) >= 90
    sides = {}
    for name in loader["worker"].keys() | (reference.keys() if torch else set()):
        values = loader["worker"].get(name), reference.get(name)
        if values[0] != values[1]:
            is_of_main = [value == main.get(name) for value in values]
            sides[name] = "loader" if is_of_main[0] else "reference" if is_of_main[1] else "neither"
    return sides


def rows_of(name: str, side: str, way: str, method: str) -> list[Difference]:
    return [
        row
        for row in DIFFERENCES
        if name in row.properties and row.side in (side, "neither") and way in row.ways and method in row.methods
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", IMPORTABLE + NOT_IMPORTABLE)
def test_a_worker_differs_from_one_of_pytorch_only_as_the_table_says(way, method):
    worlds_of = worlds(way, method)
    unknown = {
        name: (side, *(world.get(name) for of_library in worlds_of.values() for world in of_library.values()))
        for name, side in differences(way, method).items()
        if not rows_of(name, side, way, method)
    }
    assert not unknown


def test_the_table_has_no_row_too_many():
    needed = {
        (DIFFERENCES.index(row), name)
        for way in IMPORTABLE + NOT_IMPORTABLE
        for method in METHODS
        for name, side in differences(way, method).items()
        for row in rows_of(name, side, way, method)
    }
    listed = {(number, name) for number, row in enumerate(DIFFERENCES) for name in row.properties}
    assert sorted(listed - needed) == []


#: A program whose workers attach shared memory of another process. Without PyTorch it starts sooner.
ATTACHES = """
import sys
from multiprocessing import shared_memory

sys.modules["torch"] = None
from loader import DataLoader


class Reads:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        segment = shared_memory.SharedMemory(sys.argv[1])
        value = segment.buf[index]
        segment.close()
        return value


loader = DataLoader(Reads(), batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2])
for _ in range(2):
    print([int(value) for value in loader])
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_shared_memory_of_another_process_stays_when_a_worker_ends(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(ATTACHES)
    segment = Path(f"/dev/shm/attached-{os.getpid()}")
    segment.write_bytes(bytes([3, 4]))
    try:
        status, out, err = Script(script, segment.name, method).end()
        assert (status, out) == (0, "[3, 4]\n" * 2), err
    finally:
        segment.unlink(missing_ok=True)
