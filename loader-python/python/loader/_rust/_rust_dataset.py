"""Rust datasets: the classes whose samples workers load without Python code.

A dataset object holds a description: the keys of the section ``[dataset]`` of a config file, which ``loader-data``
checks and opens. A pickle of the object has only the description.

Alternative considered: Python classes with a method for each option. The description has every option of every format
already, is checked in one place, and is what the ``loader`` command reads.
"""

import functools
import json
import operator
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from .. import _native, _worker_info, transforms
from ._output import Output, converter


class Padded(NamedTuple):
    """Sequences of different lengths in a batch."""

    #: The sequences, padded to the longest: shape ``[B, longest, ...]``.
    values: Any
    #: The number of items of each before padding: ``int64`` of shape ``[B]``.
    lengths: Any


class _DescribedDataset:
    """A dataset that ``loader-data`` opens from its description.

    A subclass that overrides how samples are loaded is a dataset of Python objects: workers call its methods.

    Args:
        keys: The keys of the section ``[dataset]`` of a config file, with ``kind``.
        output: What tensors are: ``"torch"``, the default if PyTorch is installed, ``"numpy"``, or ``"dlpack"`` for
            objects with ``__dlpack__``, which other frameworks take, such as ``jax.dlpack.from_dlpack``.
    """

    # Outside `__dict__`, which a subclass may pickle, and replace with the pickled one.
    __slots__ = ("_convert", "_native_dataset", "_output")

    #: Converts a tensor to the output.
    _convert: Callable[[_native.Array], Any]
    _native_dataset: _native.RustDataset
    _output: Output | None

    def __init__(self, keys: Mapping[str, Any], output: Output | None = None) -> None:
        self._open(_native.RustDataset(json.dumps(dict(keys), default=json_value)), output)

    def _open(self, native: _native.RustDataset, output: Output | None) -> None:
        self._native_dataset, self._output, self._convert = native, output, converter(output)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses the attributes by which programs change datasets of torchvision: they would have no effect."""
        own = _own_class(type(self))
        if own is type(self):
            without_effect = ("transform", "target_transform", "loader", "root", "output")
        else:
            # The methods of a subclass may apply transforms of its own.
            without_effect = () if overridden_methods(self) else ("transform", "target_transform")
        if name in without_effect or (not name.startswith("_") and hasattr(own, name)):
            raise AttributeError(
                f"{name!r} of {type(self).__name__} cannot be set, because the samples are loaded from the description"
                " of the dataset: make another dataset with the options that you want; to choose samples, use"
                " torch.utils.data.Subset or a sampler; for an attribute of a subclass, choose another name"
            )
        super().__setattr__(name, value)

    @property
    def config(self) -> dict[str, Any]:
        """The description: the section ``[dataset]`` of a config file as a dict."""
        return json.loads(self._native_dataset.keys())

    def __getstate__(self) -> Any:
        """Returns the attributes that the program has set, not those that this package computes from the description."""
        state: Any = object.__getstate__(self)
        own = _own_class(type(self))
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        set_by_program = {
            name: value
            for name, value in (attributes or {}).items()
            if not isinstance(getattr(own, name, None), functools.cached_property)
        }
        slots = {name: value for name, value in (slots or {}).items() if name not in _DescribedDataset.__slots__}
        return (set_by_program, slots) if slots else set_by_program

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self._native_dataset.keys(), self._output), self.__getstate__()

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
        return self._native_dataset.get(position(index, len(self)), _seed(), self._convert)


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
        """Reads the samples in this process. A subclass may call it in a method that it overrides.

        Raises:
            RuntimeError: In one of several workers, each of which would read all samples.
        """
        from ._rust_loader import RustLoader

        info = _worker_info.any_worker_info()
        if info is not None and info.num_workers > 1:
            raise RuntimeError(
                f"each of the {info.num_workers} workers would read all samples of {self!r}. Give a stream of the"
                " package's own class to `loader.DataLoader`, which shares its samples among the workers. To share them"
                " yourself, iterate in the worker over `loader.RustLoader(stream, batch_size=None, rank=info.id,"
                " world_size=info.num_workers, seed=info.seed - info.id)`, where `info` is `get_worker_info()`. If the"
                " program has given each worker its own samples or files, or each worker needs all samples, iterate"
                " over `loader.RustLoader(stream, batch_size=None, seed=info.seed - info.id)`."
            )
        stream = of_native(self._native_dataset, self._output)
        return iter(RustLoader(stream, batch_size=None, seed=_seed()))


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
    innermost first. Returns ``None`` if it is a dataset of Python objects, or if its class overrides how samples are
    loaded."""
    subsets = []
    while sys.modules.get("torch") is not None and type(dataset) is sys.modules["torch"].utils.data.Subset:
        subsets.append(dataset.indices)
        dataset = dataset.dataset
    is_rust = isinstance(dataset, _DescribedDataset) and not overridden_methods(dataset)
    return (dataset, subsets[::-1]) if is_rust else None


def overridden_methods(dataset: _DescribedDataset) -> list[str]:
    """Returns the names of the methods that load samples and that the class of the dataset overrides."""
    if isinstance(dataset, RustStream):
        return ["__iter__"] if type(dataset).__iter__ is not RustStream.__iter__ else []
    methods = ("__getitem__", "__getitems__", "__len__")
    return [name for name in methods if getattr(type(dataset), name, None) is not getattr(RustDataset, name, None)]


def config_of(dataset: RustDataset | RustStream) -> dict[str, Any]:
    """Returns the description of a dataset, for another dataset. Raises as :func:`refuse_python_code`."""
    refuse_python_code(dataset)
    return dataset.config


def refuse_python_code(dataset: RustDataset | RustStream) -> None:
    """Raises ``TypeError`` if the object is no Rust dataset, or if its class overrides how samples are loaded."""
    if not isinstance(dataset, _DescribedDataset):
        raise TypeError(
            f"{dataset!r} is no Rust dataset, and here samples are loaded without Python code: give a dataset of"
            " `loader.datasets`; `loader.DataLoader` loads datasets of Python objects"
        )
    if names := overridden_methods(dataset):
        raise TypeError(
            f"{type(dataset).__name__} overrides {' and '.join(names)}, which is Python code, and here samples are"
            " loaded without Python code: give the dataset to `loader.DataLoader`, or leave the override out with"
            " `loader.dataset(**dataset.config)`"
        )


def of_native(native: _native.RustDataset, output: Output | None) -> RustDataset | RustStream:
    from .. import datasets

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
        return config_of(value)
    step = transforms.steps_of(value)[0] if isinstance(value, transforms.Transform) else None
    if step is not None and len(step) == 1:
        return step[0]
    raise TypeError(
        f"{value!r} cannot be a value of a dataset's option: give a number, text, path, list, dict, dataset or"
        " transform"
    )


def _is_own(kind: type) -> bool:
    """Returns whether the class is the package's own."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]


def _own_class(kind: type) -> type:
    """Returns the nearest class of this package among the class and its base classes."""
    return next(filter(_is_own, kind.__mro__))


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
