"""Datasets that the user's script itself defines, however the script is run, where workers are no forks of main."""

import os

import processes
import pytest

FOLDER = os.path.dirname(__file__)

SCRIPT = """
import multiprocessing
import torch

multiprocessing.set_start_method("forkserver", force=True)
from loader import DataLoader

class Mine(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index * FACTOR

FACTOR = 3

def collate(samples):
    return torch.tensor(samples) + 1

"""
GUARDED = """
if __name__ == "__main__":
    print([batch.tolist() for batch in DataLoader(Mine(), batch_size=3, num_workers=2, collate_fn=collate)])
"""
TOP_LEVEL = """
print([batch.tolist() for batch in DataLoader(Mine(), batch_size=3, num_workers=2, collate_fn=collate)])
"""
RESULT = "[[1, 4, 7], [10, 13, 16]]"


KEYS = """
from typing import NamedTuple
from torch_datasets import Items

class Key(NamedTuple):
    index: int

class Keyed(Items):
    def __getitem__(self, key):
        return 10 * key.index

if __name__ == "__main__":
    print([batch.tolist() for batch in DataLoader(Keyed([]), sampler=[Key(1), Key(2)], num_workers=1)])
"""


IN_BATCHES = """
class Sample:
    made = 0

    def __init__(self, index):
        self.index = index

    def scaled(self):
        return SCALE * self.index

class Key(Sample):
    made = 0

def scale(index):
    return SCALE * index

class Keyed(Mine):
    def __getitem__(self, key):
        return key

def collate(samples):
    class Local:
        sample = Sample(samples[0].index)
    Sample.made = -100
    return Local, Local.sample, scale, samples[0]

SCALE = 1
methods = Sample.scaled, Key.__init__
keys = [Key(index) for index in range(4)]
for local, sample, function, key in DataLoader(Keyed(), batch_size=1, sampler=keys, num_workers=2, collate_fn=collate):
    Sample.made, Key.made, SCALE = Sample.made + 1, Key.made + 2, 10
    assert (local.sample, function, type(key)) == (sample, scale, Key)
    print(Sample.made, Key.made, sample.scaled(), key.scaled(), function(key.index))
assert methods == (Sample.scaled, Key.__init__)
"""

KEYS_IN_WORKERS = """
class Key:
    seen = 0

class Keyed(Mine):
    def __getitem__(self, key):
        Key.seen += 1
        return Key.seen

print([batch.tolist() for batch in DataLoader(Keyed(), batch_size=1, sampler=[Key(), Key(), Key()], num_workers=1)])
"""

KEYS_OF_A_FUNCTION = """
class Key:
    def __reduce__(self):
        return make_key, ()

def make_key():
    return Key()

class Keyed(Mine):
    def __init__(self):
        self.key = Key()

    def __getitem__(self, key):
        return type(key) is type(self.key)

print([batch.tolist() for batch in DataLoader(Keyed(), batch_size=2, sampler=[Key(), Key()], num_workers=1)])
"""

CACHED = """
import functools

@functools.lru_cache(maxsize=5)
def triple(index):
    return FACTOR * index

class Cached(Mine):
    def __getitem__(self, index):
        return triple(index)

def collate(samples):
    return samples, triple, tuple(triple.cache_info())

for batch, function, info in DataLoader(Cached(), batch_size=3, num_workers=1, collate_fn=collate):
    assert function is triple
    print(batch, info)
"""

MEMBERS = """
import enum, os, signal

class Colour(enum.Enum):
    RED = 0
    BLUE = 1

class Coloured(Mine):
    def __getitem__(self, index):
        return Colour(index % 2)

loader = DataLoader(Coloured(), batch_size=1, num_workers=1, collate_fn=list)
for _ in range(2):
    batches = iter(loader)
    found = next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    found += [colour for batch in batches for colour in batch]
    print([colour is Colour(index % 2) for index, colour in enumerate(found)])
"""

OF_FUNCTOOLS = """
import functools, multiprocessing

@functools.singledispatch
def described(value):
    return "other"

@described.register
def _(value: int):
    return f"{value}, {described(str(value))}"

described.units = "apples"

class Described(Mine):
    @functools.cached_property
    def twice(self):
        return 2 * FACTOR

    def __getitem__(self, index):
        assert multiprocessing.parent_process() is not None
        return f"{described(index)} {described.units}", described, self.twice

for batch in DataLoader(Described(), batch_size=None, num_workers=1):
    print(batch[0], batch[1] is described, batch[2])
"""

FAILING = """
class Failing(Mine):
    def __getitem__(self, index):
        inverse = lambda: 1 // index
        return inverse()

try:
    list(DataLoader(Failing(), num_workers=1))
except ZeroDivisionError as error:
    print(error)
"""

SPAWNED = """
class Key:
    def __init__(self, index):
        self.index = index

class Keyed(Mine):
    def __getitem__(self, key):
        return key.index * FACTOR

def train():
    keys, factor = [Key(index) for index in range(6)], 1
    local = lambda samples: torch.tensor(samples) + factor
    for collate_fn in (collate, local):
        loader = DataLoader(Keyed(), batch_size=3, sampler=keys, num_workers=2, collate_fn=collate_fn)
        print([batch.tolist() for batch in loader], flush=True)

if __name__ == "__main__":
    import multiprocessing
    process = multiprocessing.get_context("spawn").Process(target=train)
    process.start()
    process.join()
"""


LOCK = "import threading\nLOCK = threading.Lock()\n"


@pytest.fixture
def without_cloudpickle(tmp_path):
    """Environment variables with which cloudpickle cannot be imported."""
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "cloudpickle.py").write_text("raise ImportError('cloudpickle is not installed, says this test')\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_a_script_with_cloudpickle_needs_no_guard(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    for part in (GUARDED, TOP_LEVEL):
        path.write_text(SCRIPT + part)
        assert processes.run(path).splitlines()[-1] == RESULT


def test_a_guarded_script_may_use_a_global_that_cloudpickle_cannot_send(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    locked = SCRIPT.replace("        return index", "        with LOCK:\n            return index")
    path.write_text(LOCK + locked + GUARDED)
    status, out, err = processes.Script(path).end()
    assert (status, out.splitlines()[-1], err) == (0, RESULT, "")


def test_a_script_without_a_guard_whose_global_cannot_be_sent_says_what_to_do(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    locked = SCRIPT.replace("        return index", "        with LOCK:\n            return index")
    path.write_text(LOCK + locked + TOP_LEVEL)
    status, _, err = processes.Script(path).end()
    assert status == 1
    assert "cannot pickle '_thread.lock' object" in err and 'under `if __name__ == "__main__":`' in err, err


def test_keys_are_of_the_class_that_a_dataset_in_an_imported_script_knows(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    known = KEYS.replace("return 10 * key.index", "with LOCK:\n            return 10 * isinstance(key, Key)")
    assert known != KEYS
    path.write_text(f"import sys\nsys.path.insert(0, {FOLDER!r})\n{LOCK}{SCRIPT}{known}")
    assert processes.run(path).splitlines()[-1] == "[[10], [10]]"


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_batches_leave_the_classes_and_functions_of_a_script_as_main_has_them(tmp_path, method):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("forkserver", method) + IN_BATCHES)
    expected = [f"{number + 1} {2 * number + 2} {10 * number} {10 * number} {10 * number}" for number in range(4)]
    assert processes.run(path).splitlines() == expected


def test_workers_of_two_epochs_and_one_that_takes_another_s_place_return_members_of_main_s_enum(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + MEMBERS)
    assert processes.run(path).splitlines() == [str([True] * 6)] * 2


def test_keys_leave_the_classes_of_a_script_as_a_worker_has_them(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + KEYS_IN_WORKERS)
    assert processes.run(path).splitlines() == ["[[1], [2], [3]]"]


def test_keys_may_need_a_function_that_the_dataset_needs_no_longer(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + KEYS_OF_A_FUNCTION)
    assert processes.run(path).splitlines() == ["[[True, True]]"]


def test_a_script_may_have_functions_with_a_cache(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + CACHED)
    assert processes.run(path).splitlines() == ["[0, 3, 6] (0, 3, 5, 3)", "[9, 12, 15] (0, 6, 5, 5)"]


def test_a_script_may_have_a_single_dispatch_function_and_a_cached_property(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + OF_FUNCTOOLS)
    assert processes.run(path).splitlines() == [f"{index}, other apples True 6" for index in range(6)]


def test_a_traceback_has_the_lines_of_the_script(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + FAILING)
    shown = processes.run(path)
    line = (SCRIPT + FAILING).splitlines().index("        inverse = lambda: 1 // index") + 1
    assert f'File "{path}", line {line}, in <lambda>\n    inverse = lambda: 1 // index\n' in shown


@pytest.mark.parametrize("with_cloudpickle", [False, True])
def test_main_may_be_a_process_that_was_spawned(tmp_path, without_cloudpickle, with_cloudpickle):
    if with_cloudpickle:
        pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = tmp_path / "train.py"
    local = "local" if with_cloudpickle else "collate"
    path.write_text(SCRIPT + SPAWNED.replace("(collate, local)", f"(collate, {local})"))
    environment = {} if with_cloudpickle else without_cloudpickle
    assert processes.run(path, **environment).splitlines() == [RESULT] * 2


def test_a_guarded_script_without_cloudpickle(tmp_path, without_cloudpickle):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + GUARDED)
    assert processes.run(path, **without_cloudpickle).splitlines()[-1] == RESULT


def test_keys_may_be_of_a_class_of_the_script(tmp_path, without_cloudpickle):
    path = tmp_path / "train.py"
    path.write_text(f"import sys\nsys.path.insert(0, {FOLDER!r})\n{SCRIPT}{KEYS}")
    for environment in ({}, without_cloudpickle):
        assert processes.run(path, **environment).splitlines()[-1] == "[[10], [20]]"


def test_an_unguarded_script_without_cloudpickle_says_what_to_do(tmp_path, without_cloudpickle):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + TOP_LEVEL)
    status, _, err = processes.Script(path, **without_cloudpickle).end()
    assert status == 1
    assert 'if __name__ == "__main__":' in err
    assert "cloudpickle" in err


def test_a_module_may_be_run_with_m(tmp_path, without_cloudpickle):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(SCRIPT + GUARDED)
    for environment in ({}, without_cloudpickle):
        paths = os.pathsep.join([str(tmp_path), environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))])
        assert processes.run("-m", "package.train", **environment | {"PYTHONPATH": paths}).splitlines()[-1] == RESULT


@pytest.mark.parametrize("how", ["-c", "stdin", "interactive"])
def test_code_without_a_file_with_cloudpickle(how):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    arguments, text = arguments_of(how)
    assert RESULT in processes.run(*arguments, text=text)


@pytest.mark.parametrize("how", ["-c", "stdin", "interactive"])
def test_code_without_a_file_and_without_cloudpickle_says_what_to_do(how, without_cloudpickle):
    arguments, text = arguments_of(how)
    status, _, err = processes.Script(*arguments, text=text, **without_cloudpickle).end()
    # An interactive session goes on after an exception.
    assert status == (0 if how == "interactive" else 1)
    assert "interactive session, which no worker can import; install cloudpickle" in " ".join(err.split())


def arguments_of(how):
    if how == "-c":
        return ["-c", SCRIPT + TOP_LEVEL], None
    if how == "stdin":
        return ["-"], SCRIPT + TOP_LEVEL
    # As one types it: an empty line ends a class or a function.
    return ["-i", "-q"], (SCRIPT + TOP_LEVEL).replace("\n\n    def", "\n    def")


def test_a_script_may_have_any_name_and_be_run_from_anywhere(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "helper_of_script.py").write_text("def triple(x):\n    return 3 * x\n")
    path = folder / "my script.with-dots.py"
    path.write_text(SCRIPT.replace("index * FACTOR", "__import__('helper_of_script').triple(index)") + GUARDED)
    assert processes.run(path).splitlines()[-1] == RESULT


def test_a_folder_with_a_module_of_the_package_s_name_disturbs_no_worker(tmp_path, monkeypatch):
    (tmp_path / "loader.py").write_text("raise RuntimeError('the wrong module')\n")
    (tmp_path / "torch.py").write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    code = (
        f"import sys; sys.path.remove(''); sys.path.insert(0, {FOLDER!r})\nfrom torch_datasets import Rows\n"
        "from loader import DataLoader\nassert len(list(DataLoader(Rows(2), num_workers=1))) == 2"
    )
    processes.run("-c", code)


def test_output_of_workers_reaches_main_s_standard_error_with_the_worker_s_number(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("return index * FACTOR", "print('sample', index); return index * FACTOR") + GUARDED)
    status, out, err = processes.Script(path).end()
    assert (status, out.splitlines()[-1]) == (0, RESULT)
    # Three samples make a batch, which one of two workers loads.
    assert sorted(err.splitlines()) == [f"[worker {index // 3}] sample {index}" for index in range(6)]
