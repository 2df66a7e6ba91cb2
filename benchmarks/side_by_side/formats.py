"""Writes the files of `parquet`, `arrow`, `json-lines`, `csv` and `tar`: `python side_by_side/formats.py WHAT PATH SAMPLES`. It runs in the
Python of the peers. The values are the same every time."""

import io
import json
import pathlib
import sys
import tarfile

import numpy

GROUP = 10_000  # rows per row group or record batch


def table(rows):
    import pyarrow

    random = numpy.random.default_rng(0)
    x = pyarrow.FixedSizeListArray.from_arrays(random.random(rows * 64, dtype=numpy.float32), 64)
    columns = {"x": x, "weight": random.random(rows, dtype=numpy.float32), "label": random.integers(0, 1000, rows)}
    return pyarrow.table(columns)


def parquet(path, rows):
    import pyarrow.parquet

    pyarrow.parquet.write_table(table(rows), path, row_group_size=GROUP)


def arrow(path, rows):
    import pyarrow

    of_file = table(rows)
    with pyarrow.ipc.new_file(path, of_file.schema) as file:
        file.write_table(of_file, max_chunksize=GROUP)


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


def csv(path, rows):
    random = numpy.random.default_rng(0)
    with open(path, "w") as file:
        file.write(",".join([*(f"x{number}" for number in range(8)), "label"]) + "\n")
        for _ in range(rows):
            numbers, label = random.random(8, dtype=numpy.float32), random.integers(0, 1000)
            file.write(",".join(map(str, [*numbers, label])) + "\n")


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
    writers = {"parquet": parquet, "arrow": arrow, "json-lines": json_lines, "csv": csv, "tar": tar}
    writers[what](unfinished, int(sys.argv[3]))
    unfinished.rename(path)
