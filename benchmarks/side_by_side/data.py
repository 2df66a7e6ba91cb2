"""Makes the files that some cases load, if they are missing. The bytes are the same every time."""

import pathlib
import random
import subprocess
import sys

from side_by_side.sides import HERE, last_line

DATA = HERE / ".data"
TOKENS = DATA / "tokens.u16"
IMAGES = DATA / "images"
TOKEN_BYTES = 64 << 20


def make(what: str, python: pathlib.Path) -> str | None:
    """Makes the data. Returns the reason if that is not possible."""
    DATA.mkdir(exist_ok=True)
    if what == "tokens":
        make_tokens()
        return None
    return make_images(python)


def make_tokens() -> None:
    if not TOKENS.exists():
        unfinished = TOKENS.with_suffix(".unfinished")
        unfinished.write_bytes(random.Random(0).randbytes(TOKEN_BYTES))
        unfinished.rename(TOKENS)


def make_images(python: pathlib.Path) -> str | None:
    if IMAGES.exists():
        return None
    print("making 2,000 photographs", file=sys.stderr)
    # The Python of the peers has Pillow.
    try:
        made = subprocess.run([python, HERE / "side_by_side/photos.py", IMAGES], stderr=subprocess.PIPE, text=True)
    except OSError as error:
        return str(error)
    return last_line(made.stderr) if made.returncode != 0 else None
