"""The start methods ``forkserver`` and ``spawn``: what workers have of main's script and of its imports, as PyTorch's
have under the same method, and the warning of what they do not have."""

import ast
import os
import sys

import pytest
from loader._program import _assignments, _lost_settings
from processes import Script, run

METHODS = ["forkserver", "spawn"]

#: Modules of the user: `registry` has settings, and an import of `extra_registry` registers a reader.
REGISTRY = """
import functools, time

READERS = {}
KINDS = {}
SIZE = 32
TRUNCATED = False
STARTED = time.time()
mode = "slow"
MODE = "slow"
calls = 0
version = None
CONFIG = {"size": 32, "inner": {"crop": 8}}
COUNTS = {"samples": 0}


class Reader:
    limit = 10
    opened = 0

    def __init__(self):
        Reader.opened += 1

    def read(self):
        return "own"


def set_mode(value):
    global MODE, LEVEL
    MODE = LEVEL = value


def count(name):
    COUNTS[name] += 1


def load():
    global calls, version
    calls, version = calls + 1, "1.0"
    return "own"


def register(name):
    def add(kind):
        KINDS[name] = kind
        return kind

    return add
"""
EXTRA = "import registry\nregistry.READERS['heic'] = True\n"

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None  # It takes long to import.\n"

#: A program that prints what a worker has of main, a line for each property.
WORLD = """
import multiprocessing, os, sys

import torch
from PIL import Image, ImageFile
import registry
import extra_registry  # registers a reader, as hdf5plugin and pillow_heif do

ImageFile.LOAD_TRUNCATED_IMAGES = True
Image.MAX_IMAGE_PIXELS = 7
registry.load = lambda: "replaced"
registry.TRUNCATED = True
torch.use_deterministic_algorithms(True)


@registry.register("sample")
class Sample:
    scale = 1


torch.serialization.add_safe_globals([Sample])


class World(torch.utils.data.Dataset):
    def __init__(self):
        self.sample = Sample()

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return {
            "a reader that an import has registered": "heic" in registry.READERS,
            "a setting of Pillow": (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS),
            "a replaced function": registry.load(),
            "a value at the top of the script": registry.TRUNCATED,
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "a registered class of the script": isinstance(self.sample, registry.KINDS["sample"]),
            "a class that torch.load accepts": Sample in torch.serialization.get_safe_globals(),
            "a value under the guard": registry.SIZE,
            "an attribute of a class of the script": Sample.scale,
            "a global of the script": SCALE,
            "a global under the guard": "UNDER" in globals(),
            "the name of main": __name__,
            "the name of a class": (type(self).__module__, type(self).__qualname__),
            "the script": os.path.basename(sys.modules["__main__"].__file__),
            "arguments": sys.argv[1:],
            "the rank": RANK,
            "the parent": multiprocessing.parent_process() is not None,
            "the number of the worker": torch.utils.data.get_worker_info().id,
        }


def as_it_is(value):
    return value


SCALE, RANK = 1, os.environ["RANK"]

if "__main__" == __name__:
    from LOADER import DataLoader

    SCALE = UNDER = Sample.scale = 5
    registry.SIZE = 224
    loader = DataLoader(World(), batch_size=None, num_workers=1, multiprocessing_context=METHOD, collate_fn=as_it_is)
    for name, value in next(iter(loader)).items():
        print(name, value, sep=": ")
"""


def write(folder, name, text, **replaced):
    for wanted, value in replaced.items():
        text = text.replace(wanted, value)
    (folder / "registry.py").write_text(REGISTRY)
    (folder / "extra_registry.py").write_text(EXTRA)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def ended(*arguments, **environment):
    """Runs a program that must succeed. Returns the lines of its output, and its warnings in one text."""
    status, out, err = Script(*arguments, **environment).end(120)
    assert status == 0, err
    return out.splitlines(), " ".join(err.split())


@pytest.mark.parametrize("how, method", [("script", "forkserver"), ("-m", "forkserver"), ("script", "spawn")])
def test_a_worker_has_what_pytorch_s_workers_have(tmp_path, method, how):
    pytest.importorskip("torch", reason="SKIPPED: PyTorch is not installed")
    found, warned = {}, {}
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    for module in ("torch.utils.data", "loader"):
        path = write(tmp_path, "package/script.py", WORLD, LOADER=module, METHOD=repr(method))
        arguments = [path, "chosen"] if how == "script" else ["-m", "package.script", "chosen"]
        paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        found[module], warned[module] = ended(*arguments, PYTHONPATH=paths, RANK="3", WORLD_SIZE="4")
    assert len(found["loader"]) == 18
    assert found["loader"] == found["torch.utils.data"]
    for text in (
        "registry.SIZE is 224 in this process and 32 in a worker",
        "__main__.SCALE is 5 in this process and 1 in a worker",
        "__main__.Sample.scale is 5 in this process and 1 in a worker",
    ):
        assert text in warned["loader"]
    assert warned["loader"].count(" in a worker") == 3, warned["loader"]


LISTED = WITHOUT_TORCH + """
import os
import numpy as np
import registry
from loader import DataLoader

with open(os.environ["LISTED"], "a") as file:
    print(__name__, file=file)


class Rows:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return 10 * index


def epochs(collate_fn=None, **options):
    loader = DataLoader(Rows(), num_workers=2, multiprocessing_context=METHOD, collate_fn=collate_fn, **options)
    for _ in range(2):
        print([int(batch[0]) for batch in loader])

"""
ROWS = "[0, 10, 20, 30]"


@pytest.mark.parametrize("method, imports", [("forkserver", 1), ("spawn", 4)])
def test_a_template_imports_the_script_once_for_all_workers(tmp_path, method, imports):
    guarded = "if __name__ == '__main__':\n    epochs()\n    epochs() if METHOD == 'forkserver' else None\n"
    path = write(tmp_path, "script.py", LISTED + guarded, METHOD=repr(method))
    lines, warned = ended(path, LISTED=str(tmp_path / "listed"))
    assert lines == [ROWS] * (4 if method == "forkserver" else 2) and warned == ""
    assert (tmp_path / "listed").read_text().split() == ["__main__"] + ["__mp_main__"] * imports


@pytest.mark.parametrize("method", METHODS)
def test_what_the_script_defines_under_its_guard_is_sent_by_value(tmp_path, method):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    guarded = """
if __name__ == "__main__" and registry.SIZE:
    class More(Rows):
        def __getitem__(self, index):
            return index + isinstance(self, Rows) + super().__getitem__(index)

    Rows, shift = More, 100
    epochs(lambda samples: [samples[0] + shift])
"""
    path = write(tmp_path, "script.py", LISTED + guarded, METHOD=repr(method))
    # `Rows` under the guard is `More`, and the module that a worker imports has the first one.
    path.write_text(path.read_text().replace("Rows, shift = More, 100", "shift, more = 100, More()"))
    path.write_text(path.read_text().replace("DataLoader(Rows()", "DataLoader(globals().get('more', Rows())"))
    lines, _ = ended(path, LISTED=str(tmp_path / "listed"))
    assert lines == [str([101 + 11 * index for index in range(4)])] * 2


@pytest.mark.parametrize("method", METHODS)
def test_the_error_of_a_script_that_a_worker_cannot_import_is_shown(tmp_path, method):
    failing = "if __name__ != '__main__': raise KeyError('not in a worker')\nif __name__ == '__main__': epochs()\n"
    path = write(tmp_path, "script.py", LISTED + failing, METHOD=repr(method))
    status, out, err = Script(path, LISTED=str(tmp_path / "listed")).end()
    assert status == 1 and out == ""
    assert "KeyError: 'not in a worker'" in err and f'File "{path}", line' in err, err


@pytest.mark.parametrize("method", METHODS)
def test_a_script_that_cannot_be_imported_is_not_imported_twice(tmp_path, method):
    failing = "import once\nonce.register('a')\nif __name__ != '__main__': raise KeyError('the cause')\n"
    path = write(tmp_path, "script.py", failing + LISTED + "if __name__ == '__main__': epochs()\n", METHOD=repr(method))
    once = "NAMES = []\n\ndef register(name):\n    assert name not in NAMES\n    NAMES.append(name)\n"
    write(tmp_path, "once.py", once)
    status, _, err = Script(path, LISTED=str(tmp_path / "listed")).end()
    assert status == 1
    assert "KeyError: 'the cause'" in err and "AssertionError" not in err, err


#: A dataset, and functions that no pickle can send: they set a global of their module and read another one.
WITH_GLOBALS = WITHOUT_TORCH + """
MISSING = object()
SCALE = 1

class Rows:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return MISSING if index == 1 else index * SCALE

def init_with(scale):
    def init(number):
        global SCALE
        SCALE = scale
    return init

def collate_without_missing():
    return lambda samples: [sample for sample in samples if sample is not MISSING]
"""
LOADS = """
from loader import DataLoader

if __name__ == "__main__":
    init = init_with(10)
    batches = DataLoader(Rows(), 2, num_workers=2, collate_fn=collate_without_missing(), worker_init_fn=init,
        multiprocessing_context=METHOD)
    print(list(batches))
"""


@pytest.mark.parametrize("where", ["script", "module"])
@pytest.mark.parametrize("method", ["fork", *METHODS])
def test_a_local_function_has_the_globals_of_its_module(tmp_path, method, where):
    if where == "module":
        write(tmp_path, "rows.py", WITH_GLOBALS)
    definitions = WITH_GLOBALS if where == "script" else "from rows import *\n"
    path = write(tmp_path, "script.py", definitions + LOADS, METHOD=repr(method))
    assert run(path).splitlines() == ["[[0], [20, 30], [40, 50]]"]


@pytest.mark.parametrize("method", METHODS)
def test_a_script_may_have_large_values_and_a_standard_output_of_its_own(tmp_path, method):
    own = """
import sys
LARGE = 2 ** 20_000 - 1

class Tee:
    def write(self, text):
        sys.__stdout__.write(text)

sys.stdout = Tee()
"""
    text = own + WITH_GLOBALS + LOADS + "    sys.stdout = sys.__stdout__\n"
    path = write(tmp_path, "script.py", text, METHOD=repr(method))
    assert run(path).splitlines() == ["[[0], [20, 30], [40, 50]]"]


@pytest.mark.parametrize("method", METHODS)
def test_a_profiler_that_runs_the_script_changes_no_sample(tmp_path, method):
    script = WITHOUT_TORCH + """
import registry, extra_registry
from loader import DataLoader

class Rows:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return "heic" in registry.READERS

if __name__ == "__main__":
    print(list(DataLoader(Rows(), num_workers=1, collate_fn=list, multiprocessing_context=METHOD)))
"""
    path = write(tmp_path, "script.py", script, METHOD=repr(method))
    assert "[[True], [True]]" in run("-m", "cProfile", path).splitlines()


def test_the_report_of_a_worker_that_replaces_another_one_is_read(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(write(tmp_path, "registry.py", REGISTRY).parent))
    monkeypatch.delitem(sys.modules, "registry", raising=False)
    import registry

    lost = _lost_settings.LostSettings("forkserver")
    for value in (1789.123456, 17.5):
        monkeypatch.setattr(registry, "SIZE", value)
        _lost_settings.compare(({"registry": {"SIZE": "1"}}, {}), lost.fileno())
    assert "registry.SIZE is 1 in this process and 17.5 in a worker" in lost.warning()


def test_a_warning_shows_no_secret(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(write(tmp_path, "secrets_of_user.py", "API_KEY = 'default'\n").parent))
    import secrets_of_user  # noqa: F401  the comparison looks for it

    lost = _lost_settings.LostSettings("forkserver")
    _lost_settings.compare(({"secrets_of_user": {"API_KEY": "'sk-1'"}}, {}), lost.fileno())
    text = lost.warning()
    assert "secrets_of_user.API_KEY is not shown in this process" in text and "sk-1" not in text
    lost = _lost_settings.LostSettings("forkserver")
    lost._statements = [(3, "secrets_of_user.DB_PASS = 'sk-2'")]
    _lost_settings.compare(({}, {}), lost.fileno())
    text = lost.warning()
    assert "workers do not run line 3 of" in text and "sk-2" not in text


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_the_top_of_a_script_may_close_a_standard_stream(tmp_path, closed):
    source = WITHOUT_TORCH + f"""
import os
from loader import DataLoader

os.close({closed})
if __name__ == "__main__":
    batches = list(DataLoader(range(2), num_workers=1, collate_fn=list, multiprocessing_context="forkserver"))
    assert batches == [[0], [1]]
"""
    run(write(tmp_path, "script.py", source))


def test_a_warning_names_twenty_settings():
    lost = _lost_settings.LostSettings("forkserver")
    lost._statements = [(line, "numpy.size = 3") for line in range(1, 24)]
    _lost_settings.compare(({}, {}), lost.fileno())
    text = lost.warning()
    assert "line 20 of" in text and "line 21 of" not in text and "; and 3 more." in text


@pytest.mark.parametrize("function", ["_script.statements_not_run", "_values", "_assignments.is_setting"])
def test_a_comparison_that_fails_is_a_warning(monkeypatch, function):
    def fail(*_):
        raise RuntimeError("no comparison")

    lost = _lost_settings.LostSettings("forkserver") if function != "_script.statements_not_run" else None
    with monkeypatch.context() as context:
        context.setattr(f"loader._program._lost_settings.{function}", fail)
        lost = lost or _lost_settings.LostSettings("forkserver")
        _lost_settings.compare(({"processes": {"SIZE": "1"}}, {}), lost.fileno())
        assert "whether workers lack settings of this process (RuntimeError: no comparison)" in lost.warning()
        assert lost.warning() is None


def test_main_finds_settings_without_running_code_of_the_program(tmp_path):
    write(tmp_path, "lazy.py", "raise RuntimeError('nobody uses it')\n")
    source = WITHOUT_TORCH + """
import importlib.util
import sys

from loader import DataLoader

spec = importlib.util.find_spec("lazy")
spec.loader = importlib.util.LazyLoader(spec.loader)
lazy = sys.modules["lazy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lazy)

class Proxy:
    __class__ = property(lambda self: 1 / 0)

class Config:
    __dict__ = property(lambda self: 1 / 0)

proxy, config = Proxy(), Config()
globals()[5] = 6

def configure():
    proxy.size = 3

if __name__ == "__main__":
    print(len(list(DataLoader(range(2), num_workers=1, multiprocessing_context="forkserver"))))
"""
    assert run(write(tmp_path, "script.py", source)).split() == ["2"]


def test_main_reads_the_source_of_a_module_once_for_all_values_of_its_dicts(tmp_path, monkeypatch):
    source = f"DICT = {dict.fromkeys('abc', 1)}\ndef change(rows):\n    rows.size = 1\n"
    monkeypatch.syspath_prepend(str(write(tmp_path, "values_of_dict.py", source).parent))
    import values_of_dict

    read, unparse = [], ast.unparse
    with monkeypatch.context() as context:
        context.setattr(ast, "unparse", lambda node: read.append(node) or unparse(node))
        for name in values_of_dict.DICT:
            assert _assignments.is_setting("values_of_dict", f"DICT[{name!r}]", is_missing=False, is_first=True)
    assert len(read) == len(set(read))


def test_a_script_that_trains_beside_its_guard_is_told_what_to_do(tmp_path):
    training = "epochs()\nif __name__ == '__main__':\n    print('end')\n"
    path = write(tmp_path, "script.py", LISTED + training, METHOD="'spawn'")
    status, _, err = Script(path, LISTED=str(tmp_path / "listed")).end()
    assert status == 1
    assert 'put the lines that begin to train under `if __name__ == "__main__":`' in err, err


#: An unguarded program. Its dataset is in a module that does not import the plugin.
UNGUARDED = WITHOUT_TORCH + """
import os
import registry, extra_registry
from loader import DataLoader
from rows import Rows

class Own(Rows):
    pass

def show(rows):
    [found] = DataLoader(rows, batch_size=None, num_workers=1, multiprocessing_context=METHOD)
    print(found)

show(Rows())
import late_registry
show(Own())
show(Rows())
"""
ROWS_MODULE = """
import registry, sys

class Rows:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return f"{sorted(registry.READERS)} {'unused' in sys.modules}"
"""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["script", "-c", "stdin"])
def test_workers_import_what_a_program_without_a_guard_has_imported(tmp_path, method, how):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    text = UNGUARDED.replace("METHOD", repr(method))
    path = write(tmp_path, "script.py", text)
    (tmp_path / "rows.py").write_text(ROWS_MODULE)
    (tmp_path / "late_registry.py").write_text("import registry\nregistry.READERS['late'] = True\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    arguments = {"script": [path], "-c": ["-c", text], "stdin": ["-"]}[how]
    script = Script(*arguments, text=text if how == "stdin" else None, PYTHONPATH=paths)
    status, out, err = script.end()
    assert (status, err) == (0, "")
    assert out.splitlines() == ["['heic'] False", *["['heic', 'late'] False"] * 2]


def test_workers_do_not_import_what_a_library_has_imported_later(tmp_path):
    pytest.importorskip("torch", reason="SKIPPED: PyTorch is not installed")
    path = write(
        tmp_path,
        "script.py",
        "import sys, torch\nfrom loader import DataLoader\n"
        "def has(_): return [name in sys.modules for name in ('torch', 'torch._dynamo', 'own_module')]\n"
        "torch.optim.SGD([torch.ones(1)], lr=1)  # It imports PyTorch's compiler.\n"
        "import own_module\n"
        "assert has(None) == [True] * 3\n"
        "for _ in range(2):\n"
        "    print(list(DataLoader([0], num_workers=1, multiprocessing_context='forkserver', collate_fn=has)))\n"
        "    torch.optim.SGD([torch.ones(1)], lr=1).step()\n",
    )
    (tmp_path / "own_module.py").write_text("")
    assert run(path) == "[[True, False, True]]\n" * 2


ORDINARY = """
import argparse, atexit, logging, os, random, sys, warnings
import numpy as np
import torch
from torch import nn
import registry
from loader import DataLoader

warnings.filterwarnings("ignore", category=DeprecationWarning)
logging.basicConfig(level=logging.INFO)
os.environ["WANDB_MODE"] = "disabled"
sys.path.append(".")
atexit.register(print, "end")
random.seed(0)
np.random.seed(0)
np.set_printoptions(precision=3)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
torch.set_num_threads(1)
torch.set_float32_matmul_precision("high")

SIZE, device, best = 4, "cpu", 0.0
arguments = argparse.ArgumentParser().parse_args()
arguments.size = SIZE
model = nn.Linear(1, 1).to(device)
model.name = "linear"
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.ones(1)

registry.load()
registry.Reader()
loader = DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="forkserver")
for epoch in range(2):
    for batch in loader:
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    best = max(best, loss.item())
    registry.calls, registry.mode = registry.calls + 1, "train"
    with torch.no_grad():
        list(DataLoader(Rows(), num_workers=1, multiprocessing_context="forkserver"))
print("trained")
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_guarded", [False, True])
def test_an_ordinary_script_gets_no_warning(tmp_path, is_guarded):
    pytest.importorskip("torch", reason="SKIPPED: PyTorch is not installed")
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    text = ORDINARY
    if is_guarded:
        top, _, training = text.partition("registry.load()\n")
        training = "\n".join(f"    {line}" for line in training.splitlines())
        text = f"{top}\nif __name__ == '__main__':\n    registry.load()\n{training}\n"
    path = write(tmp_path, "script.py", text)
    lines, warned = ended("-W", "default", path)
    assert (lines, warned) == (["trained", "end"], "")


STATEMENTS = WITHOUT_TORCH + """
import functools, logging
import numpy as np
import registry
from registry import Reader, register
from loader import DataLoader

register("other")(str)
registry.load = functools.partial(str, "fast")
registry.READERS["heic"] = True
Reader.limit = 20
if registry.READERS:
    registry.TRUNCATED = True
logging.raiseExceptions = False
np.asarray([1]).flags.writeable = False

@registry.register("own")
class Own:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return index

for _ in range(2):
    list(DataLoader(Own(), num_workers=1, multiprocessing_context="forkserver"OPTIONS))
    registry.TRUNCATED = False
"""


def test_the_warning_names_the_statements_of_an_unguarded_script_that_workers_do_not_run(tmp_path):
    pytest.importorskip("cloudpickle", reason="SKIPPED: cloudpickle is not installed")
    path = write(tmp_path, "script.py", STATEMENTS, OPTIONS="")
    _, warned = ended(path)
    statements = [
        "register('other')(str)",
        "registry.load = functools.partial(str, 'fast')",
        "registry.READERS['heic'] = True",
        "Reader.limit = 20",
        "registry.TRUNCATED = True",
        "registry.register('own')",
    ]
    lines = path.read_text().replace('"', "'").splitlines()
    for statement in statements:
        [line] = [number for number, line in enumerate(lines, 1) if line.strip().removeprefix("@") == statement]
        assert f"workers do not run line {line} of script.py ({statement})" in warned
    assert warned.count("workers do not run") == len(statements)
    assert "registry.Reader.limit is 20 in this process and 10 in a worker" in warned
    assert "registry.TRUNCATED is True in this process and False in a worker" in warned
    assert warned.count("RuntimeWarning") == 1 and "warn_lost_settings=False" in warned
    path = write(tmp_path, "script.py", STATEMENTS, OPTIONS=", warn_lost_settings=False")
    assert ended(path)[1] == ""


CHANGED = WITHOUT_TORCH + """
import argparse, functools, logging, time
import numpy as np
import registry
from loader import DataLoader
from registry import CONFIG

FACTOR, count = 3, 0
config, steps = {"size": 32}, {"done": 0}
arguments = argparse.ArgumentParser().parse_args()
arguments.size = 32

class Config:
    def __init__(self):
        self.size, self.started = 32, time.time()

class Rows:
    factor = 1
    made = 0

    def __init__(self):
        Rows.made += 1

    def __len__(self):
        return 2

    def __getitem__(self, index):
        first = FACTOR * count * self.factor * config["size"] * CONFIG["size"]
        return first * cfg.size * arguments.size * steps["done"]

cfg, rows, log = Config(), Rows(), logging.getLogger("rows")
rows.size = 1

def init(worker):
    registry.SIZE = 64
    WORKER_INIT

def fast(*_):
    return "fast"

def configure(size):
    global FACTOR
    FACTOR = cfg.size = size

if __name__ == "__main__":
    registry.load()
    registry.count("samples")
    steps["done"] += 1
    rows.size, log.disabled = 2, True
    CHANGE
    loader = DataLoader(Rows(), num_workers=2, multiprocessing_context="forkserver", worker_init_fn=init)
    for epoch in range(2):
        registry.SIZE = 64
        list(loader)
        registry.mode = f"epoch {epoch}"
        AFTER
"""


@pytest.mark.parametrize(
    "change, init, after, named",
    [
        ("pass", "pass", "pass", []),
        # A worker has it once `worker_init_fn` has run.
        ("registry.TRUNCATED = True", "registry.TRUNCATED = True", "pass", []),
        ("registry.mode = 'fast'", "pass", "pass", ["registry.mode is 'fast' in this process and 'slow' in a worker"]),
        ("registry.Reader.limit = 2", "pass", "pass", ["registry.Reader.limit is 2 in this process and 10 in"]),
        ("registry.load = fast", "pass", "pass", ["registry.load is the script's own in this process and"]),
        ("np.seterr(divide='raise')", "pass", "pass", ["numpy.geterr() is {'divide': 'raise', "]),
        ("FACTOR = count = 4", "pass", "pass", ["__main__.FACTOR is 4 in", "__main__.count is 4 in"]),
        ("Rows.factor = 4", "pass", "pass", ["__main__.Rows.factor is 4 in this process and 1 in a worker"]),
        ("config['size'] = 224", "pass", "pass", ["__main__.config['size'] is 224 in this process and 32 in"]),
        ("config.update(size=224)", "pass", "config.update(size=9)", ["__main__.config['size'] is 224 in"]),
        ("registry.CONFIG['inner']['crop'] = 4", "pass", "pass", ["registry.CONFIG['inner']['crop'] is 4 in this"]),
        ("cfg.size = arguments.size = 9", "pass", "pass", ["__main__.cfg.size is 9", "__main__.arguments.size is 9"]),
        ("cfg.size = 9", "cfg.size = 9", "pass", []),
        ("FACTOR = 4", "global FACTOR; FACTOR = 4", "pass", []),
        ("configure(5)", "pass", "configure(6)", ["__main__.FACTOR is 5 in", "__main__.cfg.size is 5 in"]),
        ("cfg.size = time.time()", "pass", "pass", []),
        (
            "registry.set_mode('fast')",
            "pass",
            "registry.set_mode('slow')",
            ["registry.MODE is 'fast' in this", "registry.LEVEL is 'fast' in this process and missing in a worker"],
        ),
        ("config['size'] += 192", "pass", "pass", []),
        ("registry.load = functools.partial(len)", "pass", "pass", ["registry.load is an object of the class functools"]),
        ("registry.Reader.read = fast", "pass", "pass", ["registry.Reader.read is the script's own in"]),
        ("Rows.__len__ = lambda self: 1", "pass", "pass", ["__main__.Rows.__len__ is the script's own in"]),
        ("np.load = functools.wraps(np.load)(fast)", "pass", "pass", ["numpy.load is the script's own in this"]),
        ("np.save = functools.partial(np.save)", "np.save = functools.partial(np.save)", "pass", []),
        ("np.vectorize.__call__ = fast", "pass", "pass", ["numpy.vectorize.__call__ is the script's own"]),
        ("np.vectorize.depth = 3", "pass", "pass", ["numpy.vectorize.depth is 3 in this process and missing in"]),
        # A setting of the second epoch.
        ("pass", "pass", "registry.TRUNCATED = True", ["registry.TRUNCATED is True in"]),
        ("device = 'cuda'; registry.STARTED = registry.calls = 5", "pass", "registry.calls = 7", []),
    ],
)
def test_settings_that_workers_lack_are_named(tmp_path, change, init, after, named):
    path = write(tmp_path, "script.py", CHANGED, CHANGE=change, WORKER_INIT=init, AFTER=after)
    _, warned = ended(path)
    assert warned.count("in this process and") == len(named), warned
    for text in named:
        assert text in warned


def test_a_warning_that_is_an_exception_loses_no_batch(tmp_path):
    program = WITHOUT_TORCH + (
        "import registry, warnings\nfrom loader import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    registry.SIZE = 64\n"
        "    warnings.simplefilter('error')\n"
        "    batches = iter(DataLoader(list(range(4)), num_workers=2, multiprocessing_context='forkserver'))\n"
        "    try:\n        next(batches)\n"
        "    except RuntimeWarning as warning:\n        print('registry.SIZE' in str(warning))\n"
        "    print([int(batch[0]) for batch in batches])\n"
    )
    assert run(write(tmp_path, "script.py", program)) == "True\n[0, 1, 2, 3]\n"
