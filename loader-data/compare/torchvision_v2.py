"""Measures torchvision v2 on one thread: prints the processor time in milliseconds per training sample of JPEGs.

    python loader-data/compare/torchvision_v2.py FOLDER [LIMIT]

This is the counterpart of `standard_train(224), f32` in the example `throughput`. If the folder has more than LIMIT
files (default: 500), every n-th file is read. Needs torch and torchvision.
"""

import sys
import time
from pathlib import Path

import torch
import torchvision
from torchvision import io
from torchvision.transforms import v2

STEPS = {
    "crop and resize": v2.RandomResizedCrop(224, antialias=True),
    "flip": v2.RandomHorizontalFlip(),
    "to f32": v2.ToDtype(torch.float32, scale=True),
    "normalise": v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}


def main():
    torch.set_num_threads(1)
    files = sorted(str(file) for file in Path(sys.argv[1]).rglob("*") if file.suffix.lower() in {".jpg", ".jpeg"})
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    files = files[:: max(1, len(files) // limit)]
    print(f"torchvision {torchvision.__version__}, torch {torch.__version__}, {len(files)} files")
    for _ in range(3):
        spent = dict.fromkeys(["read", "decode", *STEPS], 0.0)
        for file in files:
            last = time.thread_time()

            def lap(step):
                nonlocal last
                now = time.thread_time()
                spent[step] += now - last
                last = now

            data = io.read_file(file)
            lap("read")
            image = io.decode_image(data, mode=io.ImageReadMode.RGB)
            lap("decode")
            for name, step in STEPS.items():
                image = step(image)
                lap(name)
        parts = ", ".join(f"{step} {1000 * seconds / len(files):.3f}" for step, seconds in spent.items())
        print(f"{1000 * sum(spent.values()) / len(files):.3f} ms: {parts}")


main()
