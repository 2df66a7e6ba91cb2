"""Converts the tensors of a Rust dataset in main to its output: tensors of PyTorch, arrays of NumPy, or objects with
DLPack."""

import importlib.util
from collections.abc import Callable
from typing import Any, Literal

from .. import _native

Output = Literal["torch", "numpy", "dlpack"]
Convert = Callable[[_native.Array], Any]


def converter(output: Output | None) -> Convert:
    """Returns the function that converts a tensor to the output."""
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
    """Returns a tensor that shares the memory. It keeps the dtypes `uint16`, `uint32` and `uint64`, for which PyTorch
    has few functions: convert them in the workers with the option `dtypes`."""
    import torch

    tensor = torch.from_numpy(_to_plain_numpy(array))
    # The buffer protocol has no format for `bfloat16`.
    return tensor.view(torch.bfloat16) if array.dtype == "bfloat16" else tensor


def _to_numpy(array: _native.Array) -> Any:
    if array.dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                "NumPy has no bfloat16: install ml_dtypes, or convert the field with dtypes={...: 'float32'}"
            ) from None
        return _to_plain_numpy(array).view(ml_dtypes.bfloat16)
    return _to_plain_numpy(array)


def _to_plain_numpy(array: _native.Array) -> Any:
    import numpy

    plain = numpy.asarray(array)
    # NumPy makes `ulonglong` of the format of `uint64` in a buffer. That is another type than `uint64` to PyTorch.
    return plain.view(numpy.uint64) if array.dtype == "uint64" else plain


def _unchanged(array: _native.Array) -> Any:
    return array
