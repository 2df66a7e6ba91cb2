"""Compares the pixels that `write_pixels` wrote with those of Pillow. Prints the differences in levels from 0 to 255.

    python loader-data/compare/pillow.py FOLDER OUTPUT

FOLDER and OUTPUT are the arguments that `write_pixels` was given. Needs Pillow and NumPy.
"""

import sys
from pathlib import Path

import numpy as np
import PIL
from PIL import Image


def files(folder):
    """Yields the files in the order of torchvision's ImageFolder."""
    for label in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        for inside in sorted([label, *(entry for entry in label.rglob("*") if entry.is_dir())]):
            yield from sorted(file for file in inside.iterdir() if file.suffix.lower() in {".jpg", ".jpeg", ".png"})


def resized(image, shorter):
    """Resizes like torchvision's Resize(shorter)."""
    short, long = sorted(image.size)
    long = int(shorter * long / short)
    size = (shorter, long) if image.width <= image.height else (long, shorter)
    return image.resize(size, Image.Resampling.BILINEAR)


def center_cropped(image, size):
    """Crops like torchvision's CenterCrop(size). The image must not be smaller than the crop."""
    left, top = (round((side - size) / 2) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def main():
    folder, output = map(Path, sys.argv[1:3])
    print(f"Pillow {PIL.__version__}")
    print(f"{'mean absolute (largest) difference':36} {'decoded':>16} {'resized, cropped':>18}")
    means = []
    for index, file in enumerate(files(folder)):
        decoded = Image.open(file).convert("RGB")
        cells = []
        for name, image in ("decoded", decoded), ("eval", center_cropped(resized(decoded, 256), 224)):
            theirs = np.asarray(image).transpose(2, 0, 1).astype(int)
            ours = np.fromfile(output / name / str(index), np.uint8).reshape(theirs.shape).astype(int)
            difference = np.abs(ours - theirs)
            cells.append((difference.mean(), difference.max()))
        means.append([mean for mean, _ in cells])
        row = [f"{mean:.3f} ({largest})" for mean, largest in cells]
        print(f"{str(file.relative_to(folder)):36} {row[0]:>16} {row[1]:>18}")
    row = [f"{mean:.3f}" for mean in np.mean(means, axis=0)]
    print(f"{'mean of all':36} {row[0]:>16} {row[1]:>18}")


main()
