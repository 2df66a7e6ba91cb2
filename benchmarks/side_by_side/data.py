"""Makes the files that some cases load, if they are missing. The bytes are the same every time."""

import pathlib
import random
import subprocess
import sys

from side_by_side.cases import FILES, PHOTO_ARCHIVES, ROWS
from side_by_side.sides import HERE, last_line

DATA = HERE / ".data"
TOKENS = DATA / "tokens.u16"
IMAGES = DATA / "images"
TOKEN_BYTES = 64 << 20


def make(what: str, python: pathlib.Path) -> str | None:
    """Makes the data of a workload. Returns the reason if that is not possible."""
    DATA.mkdir(exist_ok=True)
    if what == "tokens":
        make_tokens()
        return None
    if what in ("images", "cached-images"):
        return make_with(python, IMAGES, "photos.py", [IMAGES])
    if what == "tar-images":
        archives = (DATA / PHOTO_ARCHIVES).parent
        return make("images", python) or make_with(python, archives, "photos.py", ["--archives", IMAGES, archives])
    file, batches = FILES[what]
    return make_with(python, DATA / file, "formats.py", [what, DATA / file, str(batches * ROWS)])


def make_tokens() -> None:
    if not TOKENS.exists():
        unfinished = TOKENS.with_suffix(".unfinished")
        unfinished.write_bytes(random.Random(0).randbytes(TOKEN_BYTES))
        unfinished.rename(TOKENS)


def make_with(python: pathlib.Path, path: pathlib.Path, script: str, arguments: list) -> str | None:
    """Makes the data with a script, if `path` does not exist. It runs in the Python of the peers, which has Pillow, NumPy
    and pyarrow."""
    if path.exists():
        return None
    print(f"making {path}", file=sys.stderr)
    try:
        command = [python, HERE / "side_by_side" / script, *arguments]
        made = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        return str(error)
    return last_line(made.stderr) if made.returncode != 0 else None
