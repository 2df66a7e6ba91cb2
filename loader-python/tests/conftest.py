"""Checks after each test that no child process, no shared memory and no descriptor of shared memory is left."""

import gc
import multiprocessing
import os
import signal

import processes
import pytest

# A shell starts background jobs with SIGINT ignored, and the scripts that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests that are not about a start method run with this one.
if method := os.environ.get("START_METHOD"):
    multiprocessing.set_start_method(method)


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Fails a test after which a child process or shared memory is still there."""
    children, memory = processes.children(), processes.shared_memory()
    yield
    # A failed test keeps its variables in its traceback.
    if getattr(request.node, "failed", False):
        return
    gc.collect()

    def left():
        return processes.children().keys() - children.keys(), processes.shared_memory() - memory

    processes.wait_until(lambda: left() == (set(), set()), 5)
    found_children, found_memory = left()
    commands = [processes.children().get(pid) for pid in found_children]
    assert not found_children, f"processes are left: {commands}"
    assert not found_memory, f"shared memory is left: {sorted(found_memory)}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call" and outcome.get_result().failed:
        item.failed = True
