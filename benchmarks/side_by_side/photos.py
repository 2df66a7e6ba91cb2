"""Makes a folder of photographs like ImageNet's, from the project's own: class folders of JPEGs of about 500 x 375.

    python benchmarks/side_by_side/photos.py FOLDER [COUNT]

Needs Pillow. The same pictures every time, so that figures of two days are of the same work.
"""

import pathlib
import random
import shutil
import sys

PHOTOS = pathlib.Path(__file__).resolve().parents[2] / "loader-data/photos"
COUNT = 2000
# About ImageNet's: most are 500 wide, a quarter stand upright, and the mean file has 110 kB.
LONG_SIDE, SHORT_SIDES = 500, (333, 375, 375, 400)
QUALITIES = (93, 96)
# The photographs have been scaled down and have lost the grain that a camera's have. A file's size, and so the work of
# decoding it, depends on it: without it the mean file would have half of the bytes of ImageNet's.
GRAIN = 0.04


def make(folder: pathlib.Path, count: int = COUNT) -> None:
    """Makes the folder; one that is there has been made completely, and is left as it is."""
    if folder.exists():
        return
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    sources = sorted(PHOTOS.glob("*/*.jpg"))
    for source in sources:
        (unfinished / source.stem).mkdir(parents=True)
    for number in range(count):
        source = sources[number % len(sources)]
        save(source, unfinished / source.stem / f"{number:05}.jpg", random.Random(number))
    unfinished.rename(folder)


def save(source: pathlib.Path, target: pathlib.Path, rng: random.Random) -> None:
    """One picture: a random part of a photograph, most of the time most of it, at a random size about the usual one."""
    from PIL import Image  # here, so that a program without Pillow can ask for everything else

    width, height = LONG_SIDE, rng.choice(SHORT_SIDES)
    if rng.random() < 0.25:
        width, height = height, width
    width, height = (round(side * rng.uniform(0.9, 1.1)) for side in (width, height))
    with Image.open(source) as photo:
        # Not far below the picture's own size: what is scaled up has no fine detail, and files too small.
        largest = min(photo.width / width, photo.height / height)
        scale = largest * rng.uniform(0.8, 1.0)
        left = rng.uniform(0, photo.width - width * scale)
        top = rng.uniform(0, photo.height - height * scale)
        part = (left, top, left + width * scale, top + height * scale)
        picture = photo.convert("RGB").resize((width, height), Image.Resampling.LANCZOS, box=part)
    noise = Image.frombytes("L", picture.size, rng.randbytes(width * height)).convert("RGB")
    picture = Image.blend(picture, noise, GRAIN)
    picture.save(target, quality=rng.randint(*QUALITIES), subsampling="4:2:0")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else COUNT)
