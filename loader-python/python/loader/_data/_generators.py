"""The global random number generators of Python, PyTorch and NumPy: their states and seeds, in main and in workers."""

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

from .._pickling import _batch_pickle


def capture() -> dict[str, Any]:
    """Returns the state of each generator that is imported, in types that ``torch.load`` reads with
    ``weights_only=True``."""
    state: dict[str, Any] = {"random": random.getstate()}
    if sys.modules.get("torch"):
        import torch

        state["torch"] = torch.get_rng_state().numpy().tobytes()
    if sys.modules.get("numpy"):
        import numpy

        state["numpy"] = _plain(numpy.random.get_state(legacy=False))
    return state


def _plain(value: Any) -> Any:
    """Returns a state of NumPy with lists in place of arrays. Which arrays it has depends on the bit generator."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def restore(state: dict[str, Any]) -> None:
    """Sets the generators to a state that :func:`capture` has returned."""
    if "random" in state:
        random.setstate(state["random"])
    if "torch" in state:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])


def seed(value: int) -> None:
    """Seeds each generator that is imported with a number of 64 bits."""
    random.seed(value)
    if sys.modules.get("torch"):
        import torch

        # Not `torch.manual_seed`, which seeds the GPUs too: in main they belong to the training step.
        torch.default_generator.manual_seed(value & 0x7FFF_FFFF_FFFF_FFFF)
    if sys.modules.get("numpy"):
        import numpy

        numpy.random.seed([value & 0xFFFF_FFFF, value >> 32])


def mixed_seed(value: int, key: Any) -> int:
    """Returns a number of 64 bits that depends on a number and on the content of a key."""
    content = b"".join([value.to_bytes(8, "little"), *_batch_pickle.content(key)])
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


@contextlib.contextmanager
def seeded(value: int, then_restore: bool) -> Iterator[None]:
    """Seeds the generators for the body; afterwards restores them if ``then_restore`` is true."""
    before = capture() if then_restore else None
    seed(value)
    try:
        yield
    finally:
        if before is not None:
            restore(before)


@contextlib.contextmanager
def kept(*saved: dict[str, Any]) -> Iterator[None]:
    """Restores each generator after the body to its state from before the body. Exception: the program itself had set a
    generator to one of the states ``saved``, with which the body begins. That generator keeps the state that the body
    has left."""
    before = capture()
    try:
        yield
    finally:
        restore({name: state for name, state in before.items() if all(state != each.get(name) for each in saved)})
