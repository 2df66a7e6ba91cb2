"""The examples that need no framework but PyTorch and torchvision."""

import json
from pathlib import Path

import processes
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("package", ["loader", "torch"])
def test_a_network_learns_from_photographs(package):
    pytest.importorskip("torchvision", reason="SKIPPED: torchvision is not installed")
    out = processes.run(
        EXAMPLES / "train_photos.py", "--package", package, "--workers", 1, "--batch-size", 16, seconds=110
    )
    line = json.loads(out.splitlines()[-1])
    first, last = line["losses"]
    assert last < first
    assert line["package"] == package
    assert line["loading_images_per_second"] > 0 and line["training_images_per_second"] > 0
