#!/usr/bin/env python3
"""Runs a test file of PyTorch or torchdata with this package's loader in place of theirs.

    python loader-python/tests/upstream.py FILE [--only PATTERN] [--list] [--baseline] [--loader NAME] [--jobs N]
        [--time-limit SECONDS]

FILE is test/test_dataloader.py of PyTorch, or test/stateful_dataloader/test_dataloader.py or test_state_dict.py of
torchdata, of the installed version. The project has no copy of them. README.md beside this file says where to get them.

Each test runs in a process of its own. The table of FILE's name in upstream_expected.toml lists the tests that must
fail, each with the reason. The exit status is 1 if any other test fails, if a listed test passes, or if the table names
a test that FILE does not have; it is 2 if FILE's tests cannot be listed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from processes import all_processes

HERE = Path(__file__).resolve().parent
OURS, TORCHS = "loader.DataLoader", "torch.utils.data.DataLoader"


@dataclass
class Outcome:
    test: str
    kind: str  # passed, skipped, failed, or over time
    detail: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="run the tests whose names match, such as '*seed*'"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the tests and run none")
    parser.add_argument(
        "--loader", default=OURS, metavar="NAME", help="the class that is tested (default: %(default)s)"
    )
    parser.add_argument(
        "--baseline", action="store_const", dest="loader", const=TORCHS, help=f"same as --loader {TORCHS}"
    )
    parser.add_argument("--jobs", type=int, default=2, help="tests that run at the same time (default: %(default)s)")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=300,
        metavar="SECONDS",
        help="maximum seconds for one test (default: %(default)s)",
    )
    options = parser.parse_args()
    file = options.file.resolve()
    if not file.is_file():
        parser.error(f"there is no file {file}")

    every = start(["--names", str(file)], options.loader, 2 * options.time_limit)
    if not isinstance(every.answer, list):
        print(f"The tests of {file} cannot be listed:\n{every.output}", file=sys.stderr)
        return 2
    names = [name for name in every.answer if fnmatchcase(name, options.only) or options.only in name]
    if options.list:
        print(*names, sep="\n")
        return 0
    table = tomllib.loads((HERE / "upstream_expected.toml").read_text()) if options.loader == OURS else {}
    expected = table.get(file.stem, {})
    unknown = sorted(expected.keys() - set(every.answer))
    return report(run_all(file, names, options), expected, unknown, len(every.answer))


def run_all(file: Path, names: list[str], options: argparse.Namespace):
    """Yields the outcome of each test as soon as it is known."""
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_one, file, name, options.loader, options.time_limit) for name in names]
        for run in as_completed(runs):
            yield run.result()


def report(outcomes, expected: dict[str, str], unknown: list[str], total: int) -> int:
    counts = dict.fromkeys(
        ["passed", "skipped", "expected failures", "failed", "passed although listed", "over time"], 0
    )
    unexpected = []
    for outcome in outcomes:
        kind = outcome.kind
        if outcome.test in expected:
            kind = {
                "failed": "expected failures",
                "over time": "expected failures",
                "passed": "passed although listed",
            }.get(kind, kind)
        counts[kind] += 1
        note = outcome.detail if kind in ("passed", "skipped") else ""
        print(f"{kind:22} {outcome.seconds:5.1f} s  {outcome.test}{note and ': ' + note}", flush=True)
        if kind in ("failed", "passed although listed", "over time"):
            unexpected.append(outcome)
    for outcome in sorted(unexpected, key=lambda outcome: outcome.test):
        print(f"\n== {outcome.test}\n{outcome.detail.rstrip()[-6000:]}")
    for name in unknown:
        print(f"\nupstream_expected.toml names a test that the file does not have: {name}")
    print(
        f"\n{', '.join(f'{count} {kind}' for kind, count in counts.items())};"
        f" {sum(counts.values())} run of {total} tests"
    )
    return 1 if unexpected or unknown else 0


def run_one(file: Path, test: str, loader: str, time_limit: float) -> Outcome:
    process = start(["--test", str(file), test], loader, time_limit)
    if process.over_time:
        return Outcome(test, "over time", process.output, process.seconds)
    kind, detail = process.answer or ("failed", "the process ended without an outcome")
    if kind != "failed" and process.status != 0:
        kind, detail = "failed", f"the test had {kind}, and then its process ended with status {process.status}"
    if kind != "failed" and process.left:
        kind, detail = "failed", f"the test had {kind}, and left processes running:\n" + "\n".join(process.left)
    if kind == "failed":
        detail = f"{process.output}\n{detail}"
    return Outcome(test, kind, detail, process.seconds)


@dataclass
class Ended:
    status: int
    answer: object  # What the process wrote as JSON, or None.
    output: str
    over_time: bool
    left: list[str]  # Command lines of processes that still ran 5 s after it.
    seconds: float


def start(arguments: list[str], loader: str, time_limit: float) -> Ended:
    """Runs this file once more, as the process of one test, and ends whatever is left of it."""
    environment = dict(os.environ, UPSTREAM_LOADER=loader, PYTHONFAULTHANDLER="1")
    paths = [str(HERE / "upstream_replace"), str(Path(arguments[1]).parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        answer, output = Path(folder, "answer"), Path(folder, "output")
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "upstream.py"), *arguments, str(answer)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
            over_time = False
            try:
                process.wait(time_limit)
            except subprocess.TimeoutExpired:
                over_time = True
                process.send_signal(signal.SIGABRT)  # faulthandler prints where each thread is.
                time.sleep(1)
        seconds = time.monotonic() - started
        left = end_session(process.pid, 0 if over_time else 5)
        process.wait()
        text = answer.read_text() if answer.exists() else "null"
        return Ended(
            process.returncode, json.loads(text or "null"), output.read_text(errors="replace"), over_time, left, seconds
        )


def end_session(session: int, patience: float) -> list[str]:
    """Waits until the processes of a session have ended, then kills them. Returns the command lines of those killed."""
    deadline = time.monotonic() + patience
    while (members := processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in members:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return list(members.values())


def processes_of(session: int) -> dict[int, str]:
    return {each.pid: each.command for each in all_processes() if each.session == session and each.state != "Z"}


def tests_of(file: Path) -> dict[str, unittest.TestCase]:
    """Imports a file and returns its tests by name, such as `TestDataLoader.test_len`."""
    sys.path.insert(0, str(file.parent))
    module = __import__(file.stem)
    # Not `loadTestsFromModule`: the hook `load_tests` of PyTorch's files insists that the file is the running script.
    classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, unittest.TestCase)]
    suites = [
        unittest.defaultTestLoader.loadTestsFromTestCase(each) for each in classes if each.__module__ == file.stem
    ]
    tests = {test.id().removeprefix(f"{file.stem}."): test for suite in suites for test in suite}
    return dict(sorted(tests.items()))


def run_test(file: Path, name: str) -> tuple[str, str]:
    result = unittest.TestResult()
    unittest.TestSuite([tests_of(file)[name]]).run(result)
    if failures := result.failures + result.errors:
        return "failed", "\n".join(text for _, text in failures)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    if result.expectedFailures:
        return "passed", "it fails, as the file itself expects"
    if result.unexpectedSuccesses:
        return "passed", "the file itself expects it to fail"
    return ("passed", "") if result.testsRun == 1 else ("failed", f"{result.testsRun} tests ran")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--names", file, answer]:
            Path(answer).write_text(json.dumps(list(tests_of(Path(file)))))
        case ["--test", file, test, answer]:
            Path(answer).write_text(json.dumps(run_test(Path(file), test)))
        case _:
            sys.exit(main())
