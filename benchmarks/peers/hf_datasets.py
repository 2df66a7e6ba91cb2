#!/usr/bin/env python3
"""The workloads that read Parquet, Arrow IPC, JSON lines and CSV on Hugging Face's `datasets`, in PyTorch's DataLoader.

By default, `datasets` converts the files to Arrow once, before anything is timed, and reads that file in each epoch. With
`--streaming` it decodes the files in each epoch.
"""

import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
from torch.utils.data import DataLoader

from workloads import Peer, files

READERS = {"parquet": "parquet", "arrow": "arrow", "json-lines": "json", "csv": "csv"}
CACHE = pathlib.Path(__file__).resolve().parents[1] / ".data/huggingface"


class HuggingFace(Peer):
    name = "hf"


def measure(peer, options):
    datasets.disable_progress_bars()
    rows = datasets.load_dataset(
        READERS[options.workload],
        data_files=options.file,
        split="train",
        streaming=options.streaming,
        cache_dir=str(CACHE),
    )
    rows = rows.with_format("torch")
    of_loader = {"batch_size": options.batch_size, "num_workers": options.workers}
    loader = DataLoader(rows, shuffle=options.shuffle or None, **of_loader)
    files(peer, options, loader, DataLoader(rows, **of_loader))


HuggingFace.further_workloads = {workload: measure for workload in READERS}


if __name__ == "__main__":
    HuggingFace().main()
