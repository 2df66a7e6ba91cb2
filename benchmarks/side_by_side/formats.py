"""Writes the files of `parquet`, `json-lines` and `tar`: `python side_by_side/formats.py WHAT PATH SAMPLES`. It runs in the
Python of the peers. The values are the same every time."""

import io
import json
import pathlib
import sys
import tarfile

import numpy


def parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    random = numpy.random.default_rng(0)
    x = pyarrow.FixedSizeListArray.from_arrays(random.random(rows * 64, dtype=numpy.float32), 64)
    columns = {"x": x, "weight": random.random(rows, dtype=numpy.float32), "label": random.integers(0, 1000, rows)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=10_000)


def json_lines(path, rows):
    random = numpy.random.default_rng(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(letters[number] for number in random.integers(0, 26, length)) for length in random.integers(1, 12, 2000)]
    words += ['"quoted"', "naïve", "line\nbreak"]
    with open(path, "w") as file:
        for _ in range(rows):
            text = " ".join(words[number] for number in random.integers(0, len(words), 30))
            tokens, label = random.integers(0, 50_000, 32).tolist(), int(random.integers(0, 1000))
            file.write(json.dumps({"text": text, "tokens": tokens, "label": label}) + "\n")


def tar(path, samples):
    random = numpy.random.default_rng(0)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(samples):
            numbers, label = random.random(1024, dtype=numpy.float32), random.integers(0, 1000)
            for field, data in (("f32", numbers.tobytes()), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:08}.{field}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    what, path = sys.argv[1], pathlib.Path(sys.argv[2])
    unfinished = path.with_name(f"{path.name}.unfinished")
    {"parquet": parquet, "json-lines": json_lines, "tar": tar}[what](unfinished, int(sys.argv[3]))
    unfinished.rename(path)
