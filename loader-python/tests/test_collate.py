"""Collation: what workers send arrives with the same types, dtypes, shapes and values as without workers."""

import collections
import dataclasses
import functools
import types

import numpy as np
import pytest
import torch
import torch.utils.data
from torch_datasets import Items, Rows, same

import loader
from loader import DataLoader

Point = collections.namedtuple("Point", ["x", "y"])


class Names(dict):
    """A mapping of one's own."""


class Numbers(list):
    """A sequence of one's own."""


@dataclasses.dataclass
class Record:
    values: torch.Tensor
    name: str


class Batch:
    """A batch of one's own."""

    def __init__(self, samples):
        self.tensor = torch.stack(samples)
        self.view = self.tensor[0]
        self.array = self.tensor.numpy()


DTYPES = [
    *(
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
    ),
    *(
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
    ),
]
#: Each is one sample; a batch has it three times.
SAMPLES = {
    **{str(dtype): torch.ones(2, 3).to(dtype) for dtype in DTYPES},
    "a number in a tensor": torch.tensor(3.5),
    "an empty tensor": torch.empty(0, 4),
    "a tensor that is not contiguous": torch.arange(12).view(3, 4).t(),
    "a tensor with channels last": torch.rand(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "a row of a larger tensor": torch.arange(20.0).view(4, 5)[2],
    "an int": 3,
    "a large int": 2**40,
    "a bool": True,
    "a float": 1.5,
    "a text": "text",
    "bytes": b"bytes",
    **{
        f"a NumPy {kind}": np.dtype(kind).type(1)
        for kind in ("float64", "float32", "float16", "int64", "int8", "uint8", "bool")
    },
    **{
        f"an array of {kind}": np.ones((2, 3), kind)
        for kind in ("float64", "float32", "float16", "int32", "uint8", "bool", "complex64")
    },
    "an array without dimensions": np.array(2.5),
    "an array that is not contiguous": np.arange(12)[::3],
    "a tuple": (1, 2.5, torch.ones(2)),
    "a list": [1, "two", torch.ones(3)],
    "a range": range(3),
    "a nested dictionary": {"a": torch.ones(2), "b": {"c": 1, "d": [1.0, "e"]}},
    "a mapping of one's own": Names(a=1, b=torch.ones(2)),
    "a read-only mapping": types.MappingProxyType({"a": 1}),
    "a sequence of one's own": Numbers([1, torch.ones(2)]),
    "a named tuple": Point(torch.ones(2), Point(1, "a")),
    "an empty tuple": (),
    "an empty dictionary": {},
}
#: Without automatic batching, and with a `collate_fn` of one's own, anything can be in a batch.
OTHERS = {
    # PyTorch cannot stack them in a worker.
    "a tensor that needs a gradient": torch.ones(2, requires_grad=True),
    "None": None,
    "an array of texts": np.array(["a", "bc"]),
    "an array of objects": np.array([None, "a", 3], dtype=object),
    "a structured array": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "an array of times": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "an array in Fortran's order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "a read-only array": np.frombuffer(b"12345678", dtype=np.int64),
    "a big-endian array": np.arange(3, dtype=">i4"),
    "a sparse tensor": torch.eye(3).to_sparse(),
    "a complex conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "a set": {1, 2},
    "a deque": collections.deque([1, 2]),
    "a mixture": [None, {"a": (1, np.ones(2), torch.ones(2)), 3: "b"}, b"\0" * 1000],
}


def collated_by_torch(sample):
    return torch.utils.data.default_collate([sample] * 3)


def same_as_named(expected, loader, where=""):
    """Compares each batch with the value expected for it, whose name a failure shows."""
    for (name, wanted), batch in zip(expected.items(), loader, strict=True):
        try:
            same(batch, wanted)
        except AssertionError as error:
            raise AssertionError(f"{name}{where}: {error}") from error


def test_every_type_is_collated_in_a_worker_as_pytorch_does():
    expected = {name: collated_by_torch(sample) for name, sample in SAMPLES.items() if name != "a read-only mapping"}
    samples = [SAMPLES[name] for name in expected]
    # One batch of three for each sample: in a worker, and in main.
    for num_workers in (1, 0):
        loader = DataLoader(
            Items(samples), batch_sampler=[[i] * 3 for i in range(len(samples))], num_workers=num_workers
        )
        same_as_named(expected, loader, f", {num_workers} workers")


def test_every_type_is_converted_in_a_worker_as_pytorch_does():
    # PyTorch converts no arrays of these.
    left_out = ("a read-only mapping", "a structured array", "an array of times", "a big-endian array")
    every = {name: sample for name, sample in (SAMPLES | OTHERS).items() if name not in left_out}
    expected = {name: torch.utils.data.default_convert(sample) for name, sample in every.items()}
    loader = DataLoader(Items(list(every.values())), batch_size=None, num_workers=1)
    same_as_named(expected, loader)


def first(samples):
    return samples[0]


def test_a_collate_fn_can_return_anything():
    loader = DataLoader(Items(list(OTHERS.values())), collate_fn=first, num_workers=1)
    same_as_named(OTHERS, loader)


#: Tensors and arrays whose strides are kept. Their elements are in memory without gaps.
STRIDED = {
    "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels last in 3D": torch.rand(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),
    "one channel, last": torch.rand(2, 1, 4, 5).contiguous(memory_format=torch.channels_last),
    "transposed": torch.arange(24).view(2, 3, 4).transpose(0, 2),
    "a row of a transposed one": torch.arange(24).view(2, 3, 4).transpose(0, 2)[:, :, 1],
    "empty": torch.empty(0, 4).t(),
    "one number of several": torch.arange(4)[::4],
    "half precision": torch.rand(3, 4).half().t(),
    "an array in Fortran's order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "a read-only one": np.frombuffer(b"12345678", dtype=np.int16).reshape(2, 2).T,
}
EXPANDED = {
    "one number": torch.tensor(2.5).expand(300, 400),
    "a row": torch.arange(4).expand(100_000, 4),
    "a column, transposed": torch.arange(3).view(3, 1).expand(3, 5).t(),
}
#: They arrive contiguous.
WITH_GAPS = {
    "every other row": torch.arange(12).view(4, 3)[::2],
    "a column": torch.arange(12).view(4, 3)[:, 1],
    "windows that overlap": torch.arange(9).unfold(0, 3, 1),
}


def test_strides_are_kept_unless_there_are_gaps():
    expected = STRIDED | EXPANDED | WITH_GAPS
    loader = DataLoader(Items(list(expected.values())), collate_fn=first, num_workers=1)
    batches = dict(zip(expected, loader, strict=True))
    for name, wanted in expected.items():
        same(batches[name], wanted)
        if name in WITH_GAPS:
            assert batches[name].is_contiguous()
        elif isinstance(wanted, np.ndarray):
            assert batches[name].strides == wanted.strides
        else:
            assert batches[name].stride() == wanted.stride(), name
    for name in EXPANDED:
        assert batches[name].untyped_storage().nbytes() == len(expected[name].unique()) * expected[name].element_size()


def test_objects_of_one_s_own_classes_travel():
    (record,) = DataLoader(Items([Record(torch.arange(3), "a")]), batch_size=None, num_workers=1)
    assert record.name == "a"
    assert record.values.tolist() == [0, 1, 2]
    (batch,) = DataLoader(Rows(2), batch_size=2, collate_fn=Batch, num_workers=1)
    assert batch.tensor.tolist() == [[0, 0], [1, 1]]
    assert batch.view.tolist() == [0, 0]
    assert batch.array.tolist() == [[0, 0], [1, 1]]


def alias(samples):
    tensor = torch.stack(samples)
    return {"a": tensor, "again": tensor, "part": tensor[0], "row": tensor[1]}


def test_a_tensor_that_is_in_a_batch_twice_arrives_as_one():
    (batch,) = DataLoader(Rows(3), batch_size=3, collate_fn=alias, num_workers=1)
    assert batch["a"] is batch["again"]
    assert batch["part"].tolist() == [0, 0]
    assert batch["row"].tolist() == [1, 1]


def with_gradient(samples):
    return torch.stack(samples).float().requires_grad_()


def test_tensors_that_need_a_gradient_still_do():
    (batch,) = DataLoader(Rows(3), batch_size=3, collate_fn=with_gradient, num_workers=1)
    assert batch.requires_grad
    batch.sum().backward()
    assert batch.grad.tolist() == [[1, 1]] * 3


def torch_inside(samples):
    return torch.utils.data.default_collate(samples), loader.default_collate(samples)


def test_a_collate_fn_can_call_the_default():
    (batch,) = DataLoader(Rows(3), batch_size=3, collate_fn=torch_inside, num_workers=1)
    same(batch[0], batch[1])
    same(batch[0], collated_by_torch(torch.tensor([0, 0])) + torch.tensor([[0, 0], [1, 1], [2, 4]]))


def test_loader_default_collate_equals_pytorch_s():
    for name, sample in SAMPLES.items():
        if name != "a read-only mapping":
            same(loader.default_collate([sample] * 2), torch.utils.data.default_collate([sample] * 2))


REFUSED = {
    "tensors of different sizes": [torch.ones(2), torch.ones(3)],
    "sequences of different lengths": [["a"], ["a", "b"]],
    "None": [None, None],
    "an object": [object(), object()],
    "an array of texts": [np.array(["a"]), np.array(["b"])],
    "sparse tensors": [torch.eye(2).to_sparse()] * 2,
    "a missing key": [{"a": 1, "b": 2}, {"a": 1}],
    "a tensor and a number": [torch.ones(1), 1],
}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_pytorch_s_default_refuses_is_refused_with_its_words(num_workers):
    names = [name for name in REFUSED if num_workers == 0 or name != "an object"]
    items = [item for name in names for item in REFUSED[name]]
    iterator = iter(DataLoader(Items(items), batch_size=2, num_workers=num_workers))
    for name in names:
        with pytest.raises(Exception) as theirs:
            torch.utils.data.default_collate(REFUSED[name])
        with pytest.raises(Exception) as ours:
            next(iterator)
        assert ours.type is theirs.type, name
        assert str(theirs.value) in str(ours.value), name
    with pytest.raises(StopIteration):
        next(iterator)


def test_types_that_the_user_adds_to_pytorch_s_default_are_collated():
    map = torch.utils.data._utils.collate.default_collate_fn_map
    map[Record] = lambda batch, *, collate_fn_map: [record.name for record in batch]
    try:
        assert list(DataLoader(Items([Record(torch.ones(1), "a")] * 2), batch_size=2)) == [["a", "a"]]
    finally:
        del map[Record]


def padded(batch, *, collate_fn_map=None):
    return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)


def collates_padded(worker):
    torch.utils.data._utils.collate.default_collate_fn_map[torch.Tensor] = padded


def collates_padded_by_its_name(worker):
    collate = torch.utils.data._utils.collate
    wrapped = functools.wraps(collate.collate_tensor_fn)(padded)
    assert wrapped.__module__ == collate.__name__
    collate.default_collate_fn_map[torch.Tensor] = wrapped


def default_of_lists(samples):
    return loader.default_collate([{"x": sample} for sample in samples])["x"]


@pytest.mark.parametrize("init", [collates_padded, collates_padded_by_its_name])
@pytest.mark.parametrize("collate_fn", [None, torch.utils.data.default_collate, default_of_lists])
def test_a_function_that_the_user_puts_in_the_place_of_pytorch_s_is_called_in_workers(collate_fn, init):
    items = [torch.ones(1), torch.ones(3)] * 2
    loader = DataLoader(Items(items), batch_size=2, num_workers=1, collate_fn=collate_fn, worker_init_fn=init)
    for batch in loader:
        same(batch, torch.tensor([[1.0, 0, 0], [1, 1, 1]]))


def test_tensors_of_different_dtypes_are_collated_to_a_common_one_in_workers():
    items = [torch.tensor([1], dtype=torch.int32), torch.tensor([1 << 40]), torch.tensor([7]), torch.tensor([0.5])]
    expected = list(DataLoader(Items(items), batch_size=2))
    assert expected[0].tolist() == [[1], [1 << 40]] and expected[1].tolist() == [[7], [0.5]]
    for mine, batch in zip(DataLoader(Items(items), batch_size=2, num_workers=1), expected, strict=True):
        same(mine, batch)
