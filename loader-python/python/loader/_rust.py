"""Rust datasets: what workers load without Python code.

A dataset is a description, the keys of the section ``[dataset]`` of a config file, which ``loader-data`` checks and opens.
A pickle of a dataset is its description.

Alternative considered: Python classes with a method for each option. The description has every option of every format
already, is checked in one place, and is what the ``loader`` command reads.
"""

import functools
import importlib.util
import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from . import _exit, _native, transforms
from ._order import Order

Output = Literal["torch", "numpy", "dlpack"]
Convert = Callable[[_native.Array], Any]


class Padded(NamedTuple):
    """Sequences of different lengths in a batch."""

    #: The sequences, padded to the longest: shape ``[B, longest, ...]``.
    values: Any
    #: The number of items of each before padding: ``int64`` of shape ``[B]``.
    lengths: Any


class _Described:
    """A dataset of ``loader-data``.

    Args:
        keys: The keys of the section ``[dataset]`` of a config file, with ``kind``.
        output: What tensors are: ``"torch"``, the default if PyTorch is installed, ``"numpy"``, or ``"dlpack"`` for objects
            with ``__dlpack__``, which other frameworks take, such as ``jax.dlpack.from_dlpack``.
    """

    def __init__(self, keys: Mapping[str, Any], output: Output | None = None) -> None:
        self._open(_native.RustDataset(json.dumps(dict(keys), default=_plain)), output)

    def _open(self, native: _native.RustDataset, output: Output | None) -> None:
        self._native = native
        self._output = output
        #: Makes what the user gets of a tensor.
        self.convert = _convert(output)

    @property
    def config(self) -> dict[str, Any]:
        """The description: the section ``[dataset]`` of a config file as a dict."""
        return json.loads(self._native.keys())

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self._native.keys(), self._output)

    def __repr__(self) -> str:
        shown = json.loads(self._native.shown_keys())
        keys = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value not in (None, {}, []))
        return f"{type(self).__name__}({keys})"


class RustDataset(_Described):
    """A map-style dataset whose samples Rust workers load without Python code.

    ``dataset[i]`` loads one sample in this process. Its random transforms draw from a seed of Python's :mod:`random`, or of
    PyTorch's default generator if PyTorch is imported.
    """

    def __len__(self) -> int:
        samples = self._native.samples
        assert samples is not None, "a map-style dataset has a length"
        return samples

    def __getitem__(self, index: int) -> Any:
        return self._native.get(_position(index, len(self)), _seed(), self.convert)


class RustStream(_Described):
    """An iterable dataset whose samples Rust workers load without Python code, each worker one shard of it."""

    def _open(self, native: _native.RustDataset, output: Output | None) -> None:
        super()._open(native, output)
        if sys.modules.get("torch") is not None:
            register_stream()

    def __len__(self) -> int:
        samples = self._native.samples
        if samples is None:
            raise TypeError(f"the number of samples of {self!r} is known only at its end")
        return samples

    def __iter__(self) -> Iterator[Any]:
        """Reads the samples in this process."""
        return iter(RustLoader(self, batch_size=None, seed=_seed()))


def register_stream() -> None:
    """Makes streams count as PyTorch's ``IterableDataset``, the class for which its loader asks."""
    from torch.utils.data import IterableDataset

    IterableDataset.register(RustStream)


def dataset(kind: str, *, output: Output | None = None, **keys: Any) -> RustDataset | RustStream:
    """Returns the dataset of any kind that ``loader-data`` reads, with the keys of the section ``[dataset]`` of a config file.

    Example:
        >>> rows = loader.dataset("parquet", path="train/*.parquet", fields=["text", "label"])
    """
    return _of_native(_native.RustDataset(json.dumps({"kind": kind, **keys}, default=_plain)), output)


def from_config(path: str | os.PathLike[str], *, output: Output | None = None) -> "RustLoader":
    """Returns the loader that a config file describes, with the options of its section ``[loader]``. The environment variables
    that the ``loader`` command reads override them."""
    native, options = _native.RustDataset.load(path)
    return RustLoader(_of_native(native, output), **json.loads(options))


class RustLoader:
    """Loads batches of a Rust dataset in the order of this loader, not PyTorch's. It needs no PyTorch.

    Each iteration is an epoch, with the next number.

    Args:
        dataset: A dataset of this package.
        batch_size: Number of samples in a batch, 1 by default; ``None`` returns samples.
        options: Those of the section ``[loader]`` of a config file, such as ``shuffle``, ``seed`` and ``num_workers``.
    """

    def __init__(self, dataset: RustDataset | RustStream, batch_size: int | None = 1, **options: Any) -> None:
        self.dataset = dataset
        self._epoch = 0
        self._state: str | None = None
        self._batches: _native.BatchIterator | None = None
        options["batch_size"] = 1 if batch_size is None else batch_size
        self._engine = engine(dataset, json.dumps(options, default=_plain), batch_size is not None)

    def __iter__(self) -> _native.BatchIterator:
        convert = self.dataset.convert
        if self._state is not None:
            batches = self._engine.resume(self._state, convert)
            self._state = None
        else:
            batches = self._engine.iterate(self._epoch, convert)
        self._epoch = batches.epoch + 1
        self._batches = batches
        _exit.close_at_exit(batches)
        return batches

    def __len__(self) -> int:
        batches = self._engine.batches()
        if batches is None:
            raise TypeError("the number of batches of a stream is known only at its end")
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch that the next iteration loads."""
        self._epoch, self._state = epoch, None

    def state_dict(self) -> dict[str, Any]:
        """Returns the state: the position after the last batch that the last iterator has returned. Call it before that iterator is
        closed."""
        state = self._state or (self._batches.state() if self._batches is not None else None)
        if state is None:
            raise RuntimeError("state_dict: no iterator of this loader is open; call it before the iterator is closed")
        return json.loads(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration continues at the position that :meth:`state_dict` has returned."""
        self._state = json.dumps(state)


class _TorchLoader(Protocol):
    """What :func:`engine` reads of the loader with PyTorch's interface."""

    dataset: Any
    num_workers: int
    worker_init_fn: Any
    collate_fn: Any


def base_of(dataset: Any) -> tuple[RustDataset | RustStream, list[Any]] | None:
    """Returns the Rust dataset that workers load ``dataset`` from, and the lists of indices of the subsets around it, innermost
    first. Returns ``None`` if it is a dataset of Python objects."""
    subsets = []
    while sys.modules.get("torch") is not None and type(dataset) is sys.modules["torch"].utils.data.Subset:
        subsets.append(dataset.indices)
        dataset = dataset.dataset
    return (dataset, subsets[::-1]) if isinstance(dataset, _Described) else None


def check(loader: _TorchLoader, is_default_collation: bool) -> None:
    """Raises an error if the loader needs Python code in the workers."""
    for name, is_given in (("collate_fn", not is_default_collation), ("worker_init_fn", loader.worker_init_fn is not None)):
        if is_given:
            raise ValueError(
                f"{name} is Python code, and workers load a Rust dataset without Python code: leave it out, and change"
                " the batch in the training step"
            )


class IndexOrder(Order):
    """The batches of a map-style Rust dataset, and of subsets of it."""

    def __init__(self, sampler: Iterable[Any], auto_collation: bool, samples: int, subsets: list[Any]) -> None:
        super().__init__(sampler, auto_collation)
        self._samples = samples
        self._subsets = subsets

    def _numbers(self, batch: Iterable[Any]) -> list[int]:
        return [self._index(key) for key in batch]

    def _index(self, key: Any) -> int:
        for indices in reversed(self._subsets):
            key = indices[key]
        if type(key) is int and 0 <= key < self._samples:
            return key
        return _position(key, self._samples)


def engine(
    dataset: RustDataset | RustStream,
    options: str,
    auto_collation: bool,
    begin: Callable[[int], Iterator[list[int]]] | None = None,
    batches: int = 0,
    sampler: str = "",
) -> _native.Engine:
    """Makes the engine of a dataset. ``begin`` gives the batches of indices; without it, the options determine the order."""
    from multiprocessing import spawn

    program = os.fsdecode(spawn.get_executable())
    return dataset._native.engine(_Parts(begin, batches, sampler, options, auto_collation, program, worker_arguments()))


class _Parts(NamedTuple):
    """See `Parts` in `rust_dataset.rs`."""

    begin: Callable[[int], Iterator[list[int]]] | None
    batches: int
    sampler_fingerprint: str
    options: str
    auto_collation: bool
    program: str
    arguments: list[str]


@functools.cache
def worker_arguments() -> list[str]:
    """Returns the arguments of the interpreter for a worker. It imports the extension module and nothing else: no ``site``,
    no variables of the environment, no other module of this package."""
    folder = os.path.dirname(os.path.abspath(_native.__file__))
    code = f"import os, sys; sys.path.append({folder!r}); import _native; os._exit(_native.serve())"
    return ["-I", "-S", "-c", code]


def _reopened(kind: type[_Described], keys: str, output: Output | None) -> _Described:
    made = kind.__new__(kind)
    made._open(_native.RustDataset(keys), output)
    return made


def _of_native(native: _native.RustDataset, output: Output | None) -> RustDataset | RustStream:
    from . import datasets

    kind = json.loads(native.keys())["kind"]
    made_by = datasets.CLASSES.get(kind, RustStream if native.is_stream else RustDataset)
    made = made_by.__new__(made_by)
    made._open(native, output)
    return made


def _plain(value: Any) -> Any:
    """Returns what JSON has for a value in a description."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, _Described):
        return value.config
    step = transforms.steps_of(value)[0] if isinstance(value, transforms.Transform) else None
    if step is not None and len(step) == 1:
        return step[0]
    raise TypeError(
        f"{value!r} cannot be a value of a dataset's option: give a number, text, path, list, dict, dataset or transform"
    )


def _position(key: Any, samples: int) -> int:
    index = operator.index(key)
    if not -samples <= index < samples:
        raise IndexError(f"index {index} is out of range: the dataset has {samples} samples")
    return index + samples if index < 0 else index


def _seed() -> int:
    if sys.modules.get("torch") is not None:
        torch = sys.modules["torch"]
        return int(torch.empty((), dtype=torch.int64).random_())
    return random.getrandbits(63)


def _convert(output: Output | None) -> Convert:
    """Returns the function that makes what the user gets of a tensor."""
    if output is None:
        output = "torch" if importlib.util.find_spec("torch") is not None else "numpy"
    match output:
        case "torch":
            return _to_torch
        case "numpy":
            return _to_numpy
        case "dlpack":
            return _unchanged
    raise ValueError(f"output is 'torch', 'numpy' or 'dlpack', not {output!r}")


def _to_torch(array: _native.Array) -> Any:
    """Returns a tensor that shares the memory. `uint16`, `uint32` and `uint64` stay what they are, and PyTorch has few functions
    for them: convert them in the workers with the key `dtypes`."""
    import numpy
    import torch

    tensor = torch.from_numpy(numpy.asarray(array))
    # A buffer has no format for `bfloat16`.
    return tensor.view(torch.bfloat16) if array.dtype == "bfloat16" else tensor


def _to_numpy(array: _native.Array) -> Any:
    import numpy

    if array.dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                "NumPy has no bfloat16: install ml_dtypes, or convert the field with dtypes={...: 'float32'}"
            ) from None
        return numpy.asarray(array).view(ml_dtypes.bfloat16)
    return numpy.asarray(array)


def _unchanged(array: _native.Array) -> Any:
    return array
