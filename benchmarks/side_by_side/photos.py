"""Makes a folder of photographs like those of ImageNet, from those in loader-data/photos: class folders of JPEGs of
about 500 x 375 pixels.

    python benchmarks/side_by_side/photos.py FOLDER [COUNT]
    python benchmarks/side_by_side/photos.py --archives FOLDER TARGET

With --archives, it puts the photographs of the folder into tar archives in WebDataset's layout. Needs Pillow. The pictures are the same every time, so that figures of different days can be compared.
"""

import io
import pathlib
import random
import shutil
import sys
import tarfile

PHOTOS = pathlib.Path(__file__).resolve().parents[2] / "loader-data/photos"
COUNT = 2000
# Each archive has 8 batches of 64 photographs, of which the first ones of the folder occur twice.
ARCHIVES, PER_ARCHIVE = 4, 512
# Similar to ImageNet, where most pictures are 500 wide, a quarter are upright, and files have 110 kB on average.
LONG_SIDE, SHORT_SIDES = 500, (333, 375, 375, 400)
QUALITIES = (93, 96)
# The photographs were scaled down and have lost the grain of a camera. The size of a file, and so the work of decoding
# it, depends on the grain: without it, files would on average have half as many bytes as those of ImageNet.
GRAIN = 0.04


def make(folder: pathlib.Path, count: int = COUNT) -> None:
    """Makes the folder. A folder that exists is complete, and is not changed."""
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
    """Saves one picture: a random, usually large part of a photograph, scaled to a random size near the usual one."""
    from PIL import Image  # imported here, so that programs without Pillow can use the rest of this module

    width, height = LONG_SIDE, rng.choice(SHORT_SIDES)
    if rng.random() < 0.25:
        width, height = height, width
    width, height = (round(side * rng.uniform(0.9, 1.1)) for side in (width, height))
    with Image.open(source) as photo:
        # The part must not be much smaller than the largest possible one: enlarged pictures have no fine detail, and
        # their files are too small.
        largest = min(photo.width / width, photo.height / height)
        scale = largest * rng.uniform(0.8, 1.0)
        left = rng.uniform(0, photo.width - width * scale)
        top = rng.uniform(0, photo.height - height * scale)
        part = (left, top, left + width * scale, top + height * scale)
        picture = photo.convert("RGB").resize((width, height), Image.Resampling.LANCZOS, box=part)
    noise = Image.frombytes("L", picture.size, rng.randbytes(width * height)).convert("RGB")
    picture = Image.blend(picture, noise, GRAIN)
    picture.save(target, quality=rng.randint(*QUALITIES), subsampling="4:2:0")


def archive(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Makes the folder `target` with archives. The label is the number of the class folder."""
    unfinished = target.with_name(target.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    classes = sorted(entry.name for entry in folder.iterdir())
    photos = sorted(folder.glob("*/*.jpg"), key=lambda path: path.name)
    for number in range(ARCHIVES):
        with tarfile.open(unfinished / f"{number}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for sample in range(number * PER_ARCHIVE, (number + 1) * PER_ARCHIVE):
                photo = photos[sample % len(photos)]
                label = str(classes.index(photo.parent.name)).encode()
                for field, data in (("jpg", photo.read_bytes()), ("cls", label)):
                    member = tarfile.TarInfo(f"{sample:08}.{field}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    unfinished.rename(target)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--archives":
        archive(*map(pathlib.Path, sys.argv[2:]))
        sys.exit()
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    make(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else COUNT)
