"""Rust datasets: the classes whose samples workers load without Python code.

A dataset object holds a description: the keys of the section ``[dataset]`` of a config file, which ``loader-data``
checks and opens. A pickle of the object has only the description.

Alternative considered: Python classes with a method for each option. The description has every option of every format
already, is checked in one place, and is what the ``loader`` command reads.
"""

import json
import operator
import os
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import _native, transforms
from ._output import Output, converter


class Padded(NamedTuple):
    """Sequences of different lengths in a batch."""

    #: The sequences, padded to the longest: shape ``[B, longest, ...]``.
    values: Any
    #: The number of items of each before padding: ``int64`` of shape ``[B]``.
    lengths: Any


class _DescribedDataset:
    """A dataset that ``loader-data`` opens from its description.

    Args:
        keys: The keys of the section ``[dataset]`` of a config file, with ``kind``.
        output: What tensors are: ``"torch"``, the default if PyTorch is installed, ``"numpy"``, or ``"dlpack"`` for
            objects with ``__dlpack__``, which other frameworks take, such as ``jax.dlpack.from_dlpack``.
    """

    def __init__(self, keys: Mapping[str, Any], output: Output | None = None) -> None:
        self._open(_native.RustDataset(json.dumps(dict(keys), default=json_value)), output)

    def _open(self, native: _native.RustDataset, output: Output | None) -> None:
        self._native_dataset = native
        self._output = output
        #: Converts a tensor to the output.
        self.convert = converter(output)

    @property
    def config(self) -> dict[str, Any]:
        """The description: the section ``[dataset]`` of a config file as a dict."""
        return json.loads(self._native_dataset.keys())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self._native_dataset.keys(), self._output)

    def __repr__(self) -> str:
        shown = json.loads(self._native_dataset.shown_keys())
        keys = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value not in (None, {}, []))
        return f"{type(self).__name__}({keys})"


class RustDataset(_DescribedDataset):
    """A map-style dataset whose samples Rust workers load without Python code.

    ``dataset[i]`` loads one sample in this process. Its random transforms draw from a seed of Python's :mod:`random`,
    or of PyTorch's default generator if PyTorch is imported.
    """

    def __len__(self) -> int:
        samples = self._native_dataset.samples
        assert samples is not None, "a map-style dataset has a length"
        return samples

    def __getitem__(self, index: int) -> Any:
        return self._native_dataset.get(position(index, len(self)), _seed(), self.convert)


class RustStream(_DescribedDataset):
    """An iterable dataset whose samples Rust workers load without Python code, each worker one shard of it."""

    def _open(self, native: _native.RustDataset, output: Output | None) -> None:
        super()._open(native, output)
        if sys.modules.get("torch") is not None:
            register_stream()

    def __len__(self) -> int:
        samples = self._native_dataset.samples
        if samples is None:
            raise TypeError(f"the number of samples of {self!r} is known only at its end")
        return samples

    def __iter__(self) -> Iterator[Any]:
        """Reads the samples in this process."""
        from ._rust_loader import RustLoader

        return iter(RustLoader(self, batch_size=None, seed=_seed()))


def register_stream() -> None:
    """Registers streams as PyTorch's ``IterableDataset``, the class by which PyTorch's loader knows iterable
    datasets."""
    from torch.utils.data import IterableDataset

    IterableDataset.register(RustStream)


def dataset(kind: str, *, output: Output | None = None, **keys: Any) -> RustDataset | RustStream:
    """Returns the dataset of any kind that ``loader-data`` reads, with the keys of the section ``[dataset]`` of a
    config file.

    Example:
        >>> rows = loader.dataset("parquet", path="train/*.parquet", fields=["text", "label"])
    """
    return of_native(_native.RustDataset(json.dumps({"kind": kind, **keys}, default=json_value)), output)


def base_of(dataset: Any) -> tuple[RustDataset | RustStream, list[Any]] | None:
    """Returns the Rust dataset that workers load ``dataset`` from, and the lists of indices of the subsets around it,
    innermost first. Returns ``None`` if it is a dataset of Python objects."""
    subsets = []
    while sys.modules.get("torch") is not None and type(dataset) is sys.modules["torch"].utils.data.Subset:
        subsets.append(dataset.indices)
        dataset = dataset.dataset
    return (dataset, subsets[::-1]) if isinstance(dataset, _DescribedDataset) else None


def of_native(native: _native.RustDataset, output: Output | None) -> RustDataset | RustStream:
    from . import datasets

    kind = json.loads(native.keys())["kind"]
    made_by = datasets.CLASSES.get(kind, RustStream if native.is_stream else RustDataset)
    made = made_by.__new__(made_by)
    made._open(native, output)
    return made


def json_value(value: Any) -> Any:
    """Returns the JSON value for a value in a description, for ``json.dumps``."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, _DescribedDataset):
        return value.config
    step = transforms.steps_of(value)[0] if isinstance(value, transforms.Transform) else None
    if step is not None and len(step) == 1:
        return step[0]
    raise TypeError(
        f"{value!r} cannot be a value of a dataset's option: give a number, text, path, list, dict, dataset or"
        " transform"
    )


def position(key: Any, samples: int) -> int:
    index = operator.index(key)
    if not -samples <= index < samples:
        raise IndexError(f"index {index} is out of range: the dataset has {samples} samples")
    return index + samples if index < 0 else index


def _unpickled(kind: type[_DescribedDataset], keys: str, output: Output | None) -> _DescribedDataset:
    made = kind.__new__(kind)
    made._open(_native.RustDataset(keys), output)
    return made


def _seed() -> int:
    if sys.modules.get("torch") is not None:
        torch = sys.modules["torch"]
        return int(torch.empty((), dtype=torch.int64).random_())
    return random.getrandbits(63)
