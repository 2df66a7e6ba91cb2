"""What a worker has of main."""

import os
from pathlib import Path

import pytest
from processes import Script

#: A program whose workers attach shared memory of another process. Without PyTorch it starts sooner.
ATTACHES = """
import sys
from multiprocessing import shared_memory

sys.modules["torch"] = None
from loader import DataLoader


class Reads:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        segment = shared_memory.SharedMemory(sys.argv[1])
        value = segment.buf[index]
        segment.close()
        return value


for _ in range(2):
    print([int(value) for value in DataLoader(Reads(), batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2])])
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_shared_memory_of_another_process_stays_when_a_worker_ends(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(ATTACHES)
    segment = Path(f"/dev/shm/attached-{os.getpid()}")
    segment.write_bytes(bytes([3, 4]))
    try:
        status, out, err = Script(script, segment.name, method).end()
        assert (status, out) == (0, "[3, 4]\n" * 2), err
    finally:
        segment.unlink(missing_ok=True)
