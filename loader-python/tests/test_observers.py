"""The options `metrics`, `trace` and `trace_on_failure`, which the iterators of a loader share."""

import gc
import json
import os
import pickle
import re
import socket
import urllib.request

import pytest
from torch_datasets import Rows

import loader
from loader import DataLoader


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def metrics(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def make(kind, tmp_path, **options):
    """Returns a loader of five batches."""
    if kind == "rust":
        (tmp_path / "rows.csv").write_text("number\n" + "".join(f"{number}\n" for number in range(10)))
        return DataLoader(loader.Csv(tmp_path / "rows.csv"), batch_size=2, **options)
    return DataLoader(Rows(10), batch_size=2, **options)


@pytest.mark.parametrize("kind", ["python", "rust"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_metrics_count_all_epochs(kind, num_workers, tmp_path):
    address = free_address()
    batches = made = make(kind, tmp_path, num_workers=num_workers, metrics=address)
    for epoch in range(3):
        # The iterator before is still there when the next one begins.
        batches = iter(made)
        assert sum(1 for _ in batches) == 5
        found = metrics(address)
        assert found["loader_epochs_total"] == str(epoch + 1)
        assert found["loader_batches_total"] == str(5 * (epoch + 1))
    del batches, made
    gc.collect()
    with pytest.raises(OSError):
        metrics(address)


@pytest.mark.parametrize("kind", ["python", "rust"])
def test_the_system_chooses_the_port_and_has_it_again_after_the_loader(kind, tmp_path):
    made = make(kind, tmp_path, metrics="127.0.0.1:0")
    assert made.metrics_address is None
    list(made)
    address = made.metrics_address
    assert metrics(address)["loader_batches_total"] == "5"
    copied = pickle.loads(pickle.dumps(made))
    list(copied)
    assert copied.metrics_address not in (None, address)
    del made
    # Without a collection of garbage.
    with pytest.raises(OSError):
        metrics(address)


def test_the_port_of_a_loader_in_the_order_of_the_engine(tmp_path):
    (tmp_path / "rows.csv").write_text("number\n1\n2\n")
    made = loader.RustLoader(loader.Csv(tmp_path / "rows.csv"), metrics="127.0.0.1:0")
    list(made)
    address = made.metrics_address
    assert metrics(address)["loader_batches_total"] == "2"
    del made
    with pytest.raises(OSError):
        metrics(address)


def passes(path):
    """Returns the numbers of the epochs in a trace."""
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    return {event["args"]["epoch"] for event in events if "epoch" in event.get("args", {})}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_trace_has_all_epochs(num_workers, tmp_path):
    path = tmp_path / "trace.json"
    made = DataLoader(Rows(10), batch_size=2, num_workers=num_workers, trace=path)
    for _ in range(3):
        batches = iter(made)
        assert sum(1 for _ in batches) == 5
    assert passes(path) == {0, 1, 2}


def test_another_file_of_the_trace_counts_from_the_next_iteration(tmp_path):
    made = DataLoader(Rows(10), batch_size=2, trace=tmp_path / "first.json")
    list(made)
    made.trace = tmp_path / "second.json"
    list(made)
    assert passes(tmp_path / "first.json") == {0}
    assert passes(tmp_path / "second.json") == {1}


def test_a_trace_of_a_failure_names_the_error(tmp_path):
    path = tmp_path / "failure.json"
    made = DataLoader(Dies(10), batch_size=2, num_workers=1, trace_on_failure=path, on_worker_death="fail")
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(made)
    assert re.search("epoch failed.*worker 0", path.read_text(), re.DOTALL)


class Dies(Rows):
    def __getitem__(self, index):
        if index == 5:
            os._exit(3)
        return super().__getitem__(index)
