"""The package without PyTorch. Where PyTorch is installed, the last test runs the others in a process that cannot
import it."""

import collections
import importlib.util
import pickle
import sys
import types
import warnings

import numpy as np
import processes
import pytest
from numpy_datasets import Dies, Draws, Names, Numbers, Point, Rows, Stream, plain

from loader import DataLoader, JsonLines, JsonLinesStream, _native, default_collate
from loader._data import _collate_numpy
from loader._main import _base_numpy
from loader._pickling import _batch_pickle

HAS_TORCH = importlib.util.find_spec("torch") is not None
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])
without_torch = pytest.mark.skipif(
    HAS_TORCH, reason="SKIPPED: PyTorch is installed, so it runs in the process of the last test"
)


@without_torch
@WORKERS
def test_batches_are_arrays_and_no_process_imports_torch(num_workers):
    batches = list(DataLoader(Rows(), batch_size=4, num_workers=num_workers))
    assert [batch["i"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch["row"].shape for batch in batches] == [(4, 2, 3), (4, 2, 3), (2, 2, 3)]
    assert batches[1]["row"].dtype == np.float32
    assert batches[1]["row"][2].tolist() == [[6] * 3] * 2
    assert not any(batch["torch"].any() for batch in batches)
    batches[0]["row"] += 1  # It can be written to.
    assert sys.modules.get("torch") is None


@without_torch
@WORKERS
@pytest.mark.parametrize("batch_size", [4, None])
def test_a_seed_determines_the_order(num_workers, batch_size):
    def epochs(generator):
        np.random.seed(7)
        loader = DataLoader(
            Rows(50), batch_size, shuffle=True, num_workers=num_workers, generator=generator, collate_fn=plain
        )
        return [list(loader), list(loader)]

    for make in (lambda: None, lambda: np.random.default_rng(3)):
        first, second = epochs(make())
        assert first != second
        assert epochs(make()) == [first, second]
        numbers = first if batch_size is None else sum(first, [])
        assert sorted(sample["i"] for sample in numbers) == list(range(50))
    assert epochs(np.random.default_rng(4)) != epochs(np.random.default_rng(3))


@without_torch
def test_the_order_is_the_same_with_any_number_of_workers_and_with_persistent_ones():
    def epochs(**arguments):
        loader = DataLoader(Rows(20), 3, True, drop_last=True, generator=np.random.default_rng(1), **arguments)
        return plain([list(loader) for _ in range(3)])

    assert epochs() == epochs(num_workers=2)
    # As in PyTorch, persistent workers have one seed, so no other one is drawn before the second epoch.
    persistent = epochs(num_workers=2, persistent_workers=True)
    assert persistent[0] == epochs()[0]
    assert persistent == epochs(num_workers=1, persistent_workers=True)
    assert persistent[1] not in (persistent[0], persistent[2])


@without_torch
def test_the_seed_of_main_determines_those_of_workers():
    def draws(seed):
        np.random.seed(seed)
        return plain(list(DataLoader(Draws(12), num_workers=2, collate_fn=list)))

    found = draws(1)
    assert draws(1) == found
    assert draws(2) != found
    assert [batch[0][3] for batch in found] == [0, 1] * 6
    assert len({number for batch in found for number in batch[0][1:3]}) == 24


@without_torch
def test_a_worker_that_is_killed_changes_nothing(tmp_path):
    def epoch(dataset):
        loader = DataLoader(dataset, 2, True, num_workers=2, generator=np.random.default_rng(5), seed_samples=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # It says that the worker has died.
            return [plain(batch[:3]) for batch in loader]

    expected = epoch(Draws(20))
    assert epoch(Dies(20, tmp_path / "dead")) == expected
    assert (tmp_path / "dead").exists()


@without_torch
@WORKERS
def test_an_iterable_dataset_has_shards_and_an_announced_length(num_workers):
    batches = [batch.tolist() for batch in DataLoader(Stream(), batch_size=3, num_workers=num_workers)]
    assert batches == (
        [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]] if num_workers else [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    )
    assert sorted(DataLoader(Stream(), batch_size=None, num_workers=num_workers)) == list(range(10))
    assert len(DataLoader(Stream(announced=10), batch_size=3)) == 4
    with pytest.raises(TypeError, match="no length"):
        len(DataLoader(Stream()))
    loader = DataLoader(Stream(announced=9), num_workers=num_workers)
    assert len(loader) == 9
    with pytest.warns(UserWarning, match="was reported to be 9.* but 10 samples have been fetched"):
        assert len(list(loader)) == 10


@without_torch
@WORKERS
@pytest.mark.parametrize("generator", [True, False])
@pytest.mark.parametrize("after", [0, 3, 7])
def test_a_loader_resumes_from_a_state(num_workers, generator, after):
    def made():
        np.random.seed(9)
        given = np.random.default_rng(2) if generator else None
        return DataLoader(Rows(20), 3, True, num_workers=num_workers, generator=given, collate_fn=plain)

    loader = made()
    whole = [list(loader), list(loader)]
    loader = made()
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(after)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    resumed = made()
    np.random.seed(1000)  # What is drawn meanwhile does not matter.
    resumed.load_state_dict(state)
    if after == 7:  # Only the end of the epoch is left.
        assert list(resumed) == []
        assert generator is False or list(resumed) == whole[1]
    else:
        assert begun + list(resumed) == whole[0]
        assert generator is False or list(resumed) == whole[1]


@without_torch
@WORKERS
def test_an_iterable_dataset_resumes(num_workers):
    loader = DataLoader(Stream(), batch_size=2, num_workers=num_workers, collate_fn=plain)
    whole = list(loader)
    iterator = iter(loader)
    begun = [next(iterator), next(iterator)]
    resumed = DataLoader(Stream(), batch_size=2, num_workers=num_workers, collate_fn=plain)
    resumed.load_state_dict(loader.state_dict())
    assert begun + list(resumed) == whole


@without_torch
def test_pin_memory_gives_a_warning_and_ordinary_memory():
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but PyTorch is not installed"):
        assert len(list(DataLoader(Rows(2), pin_memory=True, num_workers=1))) == 2


@without_torch
@WORKERS
def test_rust_datasets_return_numpy_arrays(num_workers, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"i": {i}}}\n' for i in range(10)))
    rows, stream = JsonLines(tmp_path / "rows.jsonl"), JsonLinesStream(tmp_path / "rows.jsonl")
    (batch,) = DataLoader(rows, 10, True, num_workers=num_workers, generator=np.random.default_rng(1))
    assert type(batch["i"]) is np.ndarray
    assert sorted(batch["i"]) == list(range(10)) != batch["i"].tolist()
    assert [batch["i"].tolist() for batch in DataLoader(stream, 6, num_workers=num_workers)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9],
    ]


@without_torch
def test_a_generator_must_be_numpy_s():
    with pytest.raises(TypeError, match="numpy.random.Generator"):
        DataLoader(Rows(), shuffle=True, generator=np.random.RandomState(3))


@without_torch
def test_an_iterator_has_a_length_and_cannot_be_pickled():
    loader = DataLoader[dict](Rows(), batch_size=3)
    assert len(iter(loader)) == len(loader) == 4
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iter(loader))
    with pytest.raises(ValueError, match="batch_size attribute should not be set after DataLoader is initialized"):
        loader.batch_size = 4


#: Each is one sample. PyTorch's collation makes tensors where NumPy's makes arrays, and both have the same structure.
SAMPLES = {
    **{f"an array of {kind}": np.ones((2, 3), kind) for kind in ("f8", "f4", "f2", "i8", "i4", "i1", "u1", "?", "c8")},
    **{f"a NumPy {kind}": np.dtype(kind).type(1) for kind in ("f8", "f4", "f2", "i8", "i1", "u1", "?", "c8")},
    **{"an int": 3, "a large int": 2**40, "a bool": True, "a float": 1.5, "a text": "text", "bytes": b"bytes"},
    "an array without dimensions": np.array(2.5),
    "an array that is not contiguous": np.arange(12)[::3],
    "an array in Fortran's order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "an empty array": np.empty((0, 4)),
    "a tuple": (1, (2.5, "a"), np.ones(2)),
    "a list": [1, "two", np.ones(3)],
    "a range": range(3),
    "a deque": collections.deque([1, 2.5]),
    "a nested dictionary": {"a": np.ones(2), "b": {"c": 1, "d": [1.0, "e"]}},
    "a mapping of one's own": Names(a=1, b=np.ones(2)),
    "a read-only mapping": types.MappingProxyType({"a": 1}),
    "a sequence of one's own": Numbers([1, np.ones(2)]),
    "a named tuple": Point(np.ones(2), Point(1, "a")),
    **{"an empty tuple": (), "an empty dictionary": {}},
}
#: PyTorch makes no tensors of these.
ONLY_NUMPY = {
    "an array of times": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "a structured array": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "a big-endian array": np.arange(3, dtype=">i4"),
}
REFUSED = {
    "arrays of different sizes": [np.ones(2), np.ones(3)],
    "sequences of different lengths": [["a"], ["a", "b"]],
    "None": [None, None],
    "an array of texts": [np.array(["a"]), np.array(["b"])],
    "an array of objects": [np.array([None])] * 2,
    "a missing key": [{"a": 1, "b": 2}, {"a": 1}],
    "a number and a text": [1.5, "2"],
}


def outcome(function, *arguments):
    try:
        return described(function(*arguments))
    except Exception as error:
        return type(error), str(error)


def described(value):
    """Returns the structure of a batch, with dtypes, shapes and bytes of arrays and tensors."""
    if type(value).__name__ == "Tensor":
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, (dict, types.MappingProxyType)):
        return type(value), [(key, described(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value), [described(item) for item in value]
    return type(value), value


def test_collation_without_torch_gives_what_torch_s_gives():
    data = pytest.importorskip("torch.utils.data", reason="SKIPPED: PyTorch is not installed")
    for name, sample in SAMPLES.items():
        wanted = outcome(data.default_collate, [sample] * 3)
        assert outcome(_collate_numpy.default_collate, [sample] * 3) == wanted, name
        assert outcome(_collate_numpy.default_convert, sample) == outcome(data.default_convert, sample), name
    for name, samples in REFUSED.items():
        assert outcome(_collate_numpy.default_collate, samples) == outcome(data.default_collate, samples), name


@without_torch
def test_every_type_is_collated_in_a_worker_as_in_main():
    samples = {name: sample for name, sample in (SAMPLES | ONLY_NUMPY).items() if name != "a read-only mapping"}
    order = [[number] * 3 for number in range(len(samples))]
    batches = list(DataLoader(list(samples.values()), batch_sampler=order, num_workers=1))
    for (name, sample), batch in zip(samples.items(), batches, strict=True):
        assert described(batch) == described(default_collate([sample] * 3)), name
    singles = list(DataLoader(list(samples.values()), batch_size=None, num_workers=1))
    for (name, sample), single in zip(samples.items(), singles, strict=True):
        assert described(single) == described(_collate_numpy.default_convert(sample)), name


@without_torch
@WORKERS
def test_what_cannot_be_collated_is_refused(num_workers):
    iterator = iter(
        DataLoader([item for items in REFUSED.values() for item in items], batch_size=2, num_workers=num_workers)
    )
    for name, samples in REFUSED.items():
        wanted = outcome(default_collate, samples)
        with pytest.raises(wanted[0]) as raised:
            next(iterator)
        assert wanted[1] in str(raised.value), name


def test_free_threaded_python_is_refused():
    # The name that such a build of Python has.
    code = "import sys; sys.abiflags = 't'\ntry: import loader\nexcept ImportError as error: print(error)"
    assert "does not support free-threaded Python" in processes.run("-c", code)


def test_a_worker_stacks_arrays_in_the_memory_of_the_batch():
    collate = _collate_numpy.in_worker(_collate_numpy.default_collate)
    batch = collate([{"x": np.full((2, 3), i, np.float16), "y": (np.array(i), "a")} for i in range(4)])
    pickled, buffers = _batch_pickle.encode(batch)
    assert [type(buffer) for buffer in buffers] == [_native.Memory, _native.Memory]
    assert described(_batch_pickle.decode(pickled, buffers)) == described(batch)


ARGUMENTS = [
    {},
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "telepathy"},
    {"num_workers": 1, "multiprocessing_context": 5},
    {"sampler": range(3)},
    {"sampler": range(3), "shuffle": True},
    {"shuffle": True},
    {"batch_sampler": [[1]]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "batch_size": None},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": True},
    {"drop_last": 1},
    {"num_workers": 1000},
    {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
    {"num_workers": -1, "timeout": -1, "batch_size": 0},
]  # fmt: skip
DEFAULTS = {
    "batch_size": 1, "shuffle": None, "sampler": None, "batch_sampler": None, "num_workers": 0, "collate_fn": None,
    "pin_memory": False, "drop_last": False, "timeout": 0, "worker_init_fn": None, "multiprocessing_context": None,
    "generator": None, "prefetch_factor": None, "persistent_workers": False, "pin_memory_device": "", "in_order": True,
}  # fmt: skip


def loader_of(kind, dataset, arguments):
    """Returns what a loader is made into: its attributes, length and warnings."""
    names = "batch_size num_workers prefetch_factor drop_last timeout persistent_workers".split()
    names += ["_dataset_kind", "_auto_collation"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = kind(dataset, **DEFAULTS | arguments)
    return [getattr(loader, name) for name in names], len(loader), [str(warning.message) for warning in caught]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_arguments_are_checked_as_by_torch(arguments):
    data = pytest.importorskip("torch.utils.data", reason="SKIPPED: PyTorch is not installed")
    theirs = type("Theirs", (data.IterableDataset,), {"__iter__": Stream.__iter__, "__len__": lambda self: 10})()
    for own, torch_s in ((Rows(), Rows()), (Rows(0), Rows(0)), (Stream(announced=10), theirs)):
        wanted = outcome(loader_of, data.DataLoader, torch_s, arguments)
        assert outcome(loader_of, _base_numpy.DataLoader, own, arguments) == wanted


@pytest.mark.skipif(not HAS_TORCH, reason="SKIPPED: PyTorch is not installed, so the other tests have run here")
def test_the_others_pass_in_a_process_that_cannot_import_torch():
    code = "import sys; sys.modules['torch'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    out = processes.run("-c", code, "-p", "no:cacheprovider", "-q", __file__, seconds=300)
    assert "passed" in out and "failed" not in out, out
