"""Transforms of images that workers apply without Python, named as in ``torchvision.transforms.v2``.

Each class describes a step of ``loader_data::Transform``; the steps, their arithmetic and their rounding are
torchvision's. Each sample has its own random number generator, seeded from the loader's base seed, the epoch and the
index, so workers transform an image in the same way, whatever their number.

In place of each class, a dataset also accepts torchvision's transform of the same name.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "CenterCrop",
    "Compose",
    "ConvertImageDtype",
    "Normalize",
    "PILToTensor",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToTensor",
]

_Size = int | Sequence[int]


class Transform:
    """A step between an image file and its tensor."""

    def step(self) -> dict[str, Any] | None:
        """Returns the step as in a config, or ``None`` if it changes only the type of the pixels."""
        return None

    def pixels(self) -> str | None:
        """Returns the type of the pixels after it, ``"f32"`` or ``"u8"``, or ``None`` if it does not change it."""
        return None


@dataclasses.dataclass(frozen=True)
class Resize(Transform):
    """Makes the shorter side ``size`` pixels long, or the image ``(height, width)``. Bilinear, with antialiasing."""

    size: _Size

    def step(self) -> dict[str, Any]:
        match _sizes(self.size):
            case [side]:
                return {"resize": {"size": side}}
            case [height, width]:
                return {"resize_exact": {"height": height, "width": width}}
        raise ValueError(f"Resize: size must be one number or two, but is {self.size!r}")


@dataclasses.dataclass(frozen=True)
class CenterCrop(Transform):
    """Keeps the central part. Black is added around an image that is smaller."""

    size: _Size

    def step(self) -> dict[str, Any]:
        return {"center_crop": _both(self.size)}


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Takes a part of random area, aspect ratio and position, and resizes it to ``size``."""

    size: _Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)

    def step(self) -> dict[str, Any]:
        return {"random_resized_crop": {**_both(self.size), "scale": list(self.scale), "ratio": list(self.ratio)}}


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """Mirrors left and right with probability ``p``."""

    p: float = 0.5

    def step(self) -> dict[str, Any]:
        return {"random_horizontal_flip": {"p": self.p}}


@dataclasses.dataclass(frozen=True)
class Normalize(Transform):
    """Computes ``(pixel - mean) / std`` for each channel, for pixels from 0 to 1. Must be the last step."""

    mean: Sequence[float]
    std: Sequence[float]

    def step(self) -> dict[str, Any]:
        return {"normalise": {"mean": _of_channels(self.mean), "std": _of_channels(self.std)}}


@dataclasses.dataclass(frozen=True)
class ToTensor(Transform):
    """Pixels of type ``float32`` from 0 to 1. This is also the default."""

    def pixels(self) -> str:
        return "f32"


@dataclasses.dataclass(frozen=True)
class PILToTensor(Transform):
    """Pixels of type ``uint8``, a quarter of the bytes. The training step converts and normalises them."""

    def pixels(self) -> str:
        return "u8"


@dataclasses.dataclass(frozen=True)
class ToImage(PILToTensor):
    """The same as :class:`PILToTensor`."""


@dataclasses.dataclass(frozen=True)
class ToDtype(Transform):
    """Pixels of type ``float32`` from 0 to 1, or of type ``uint8``."""

    dtype: Any = "float32"
    scale: bool = False

    def pixels(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        if name == "uint8":
            return "u8"
        if name != "float32" or not self.scale:
            raise ValueError(
                f"ToDtype: dtype must be float32 with scale=True, or uint8, but is {name} with scale={self.scale}"
            )
        return "f32"


@dataclasses.dataclass(frozen=True)
class ConvertImageDtype(Transform):
    """:class:`ToDtype` with ``scale=True``."""

    dtype: Any = "float32"

    def pixels(self) -> str:
        return ToDtype(self.dtype, scale=True).pixels()


@dataclasses.dataclass(frozen=True)
class Compose(Transform):
    """Several transforms, in order."""

    transforms: Sequence[Any]


_CLASSES = {name: value for name, value in globals().items() if name in __all__}
#: The values that workers support for attributes of torchvision's transforms that the steps do not have.
_SUPPORTED_VALUES = {
    "interpolation": ("bilinear",),
    "max_size": (None,),
    "antialias": (True, None),
    "inplace": (False, True),
}


def steps_of(transform: Any) -> tuple[list[dict[str, Any]], str]:
    """Returns the steps of a transform or a list of them as in a config, and the type of the pixels.

    Raises:
        TypeError: If workers have no such transform.
        ValueError: If an option of the transform has a value that workers do not support.
    """
    steps: list[dict[str, Any]] = []
    pixels = None
    for part in _flat(transform):
        step = part.step()
        if step is not None:
            steps.append(step)
        before, pixels = pixels, part.pixels() or pixels
        if isinstance(part, ToDtype) and not part.scale and (before, pixels) == ("f32", "u8"):
            raise ValueError("ToDtype: uint8 with scale=False would make each pixel 0 or 1: use scale=True")
    return steps, pixels or "f32"


def _flat(transform: Any) -> Iterable[Transform]:
    if isinstance(transform, (list, tuple)):
        parts: Iterable[Any] = transform
    elif type(transform).__name__ == "Compose" and hasattr(transform, "transforms"):
        parts = transform.transforms
    else:
        yield _own(transform)
        return
    for part in parts:
        yield from _flat(part)


def _own(transform: Any) -> Transform:
    """Returns the transform of this module that does what ``transform``, perhaps one of torchvision, does."""
    if isinstance(transform, Transform):
        return transform
    name = type(transform).__name__
    kind = _CLASSES.get(name)
    if kind is None or not type(transform).__module__.startswith("torchvision.transforms."):
        known = ", ".join(sorted(_CLASSES))
        raise TypeError(
            f"workers cannot apply the transform {transform!r} without Python; the supported transforms are {known}."
            " Apply others to the batch in the training step, or use torchvision's dataset"
        )
    for option, allowed in _SUPPORTED_VALUES.items():
        value = getattr(transform, option, allowed[0])
        if getattr(value, "value", value) not in allowed:
            raise ValueError(
                f"{name} has {option}={value!r}, which workers do not support: use {option}={allowed[0]!r}"
            )
    fields = [field.name for field in dataclasses.fields(kind)]
    return kind(**{field: getattr(transform, field) for field in fields if hasattr(transform, field)})


def _of_channels(values: Sequence[float]) -> list[float]:
    """Returns the value of each channel. As in torchvision, a single value applies to all channels."""
    return [float(value) for value in values] * (3 if len(values) == 1 else 1)


def _sizes(size: _Size) -> list[int]:
    return [int(side) for side in size] if isinstance(size, Sequence) else [int(size)]


def _both(size: _Size) -> Mapping[str, int]:
    sides = _sizes(size)
    if len(sides) not in (1, 2):
        raise ValueError(f"the size of a transform must be one number or (height, width), but is {size!r}")
    return {"height": sides[0], "width": sides[-1]}
