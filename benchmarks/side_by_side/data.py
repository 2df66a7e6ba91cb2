"""What some cases load, made where it is missing: the same bytes every time."""

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
    """Why it cannot be made, if it cannot."""
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
    # In the peers' Python, which has Pillow.
    try:
        made = subprocess.run([python, HERE / "side_by_side/photos.py", IMAGES], stderr=subprocess.PIPE, text=True)
    except OSError as error:
        return str(error)
    return last_line(made.stderr) if made.returncode != 0 else None
