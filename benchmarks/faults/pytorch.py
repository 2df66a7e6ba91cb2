#!/usr/bin/env python3
"""Measures what PyTorch's DataLoader does when something goes wrong. Each try of a fault has a process of its own.

    python benchmarks/faults/pytorch.py                     # all faults, 20 tries each; half an hour, mostly waiting
    python benchmarks/faults/pytorch.py --only reaper       # one fault; --only may be repeated
    python benchmarks/faults/pytorch.py --json FILE         # writes every try to FILE; keeps those of other faults

Needs PyTorch. Prints tables. Fails if a try could not measure the loader.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import sys

import report
from faults import FAULTS, Fault
from tries import Broken, Hosts, attempt


def main() -> None:
    options = parse()
    faults = [fault for fault in FAULTS.values() if not options.only or fault.name in options.only]
    hosts = Hosts()
    try:
        tries, broken = measure(faults, hosts, options)
    finally:
        hosts.end()
    if options.json:
        tries = {**report.stored(options.json), **tries}
        report.store(options.json, tries, broken, options.jobs)
    print(report.tables(tries))
    if broken:
        sys.exit(f"these tries are not counted, because they did not measure the loader: {broken}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--only", action="append", metavar="FAULT", choices=FAULTS, help="only this fault")
    parser.add_argument("--jobs", type=int, default=8, help="number of tries at once, for faults that mostly wait")
    options = parser.parse_args()
    if options.tries < 1 or options.jobs < 1:
        parser.error("--tries and --jobs must be at least 1")
    return options


def measure(
    faults: list[Fault], hosts: Hosts, options: argparse.Namespace
) -> tuple[dict[str, list[dict]], dict[str, list[str]]]:
    """Returns the tries by fault, and the reasons why other tries do not count. Tries of quick faults run one at a
    time, because their times are milliseconds."""
    tries: dict[str, list[dict]] = {fault.name: [] for fault in faults}
    broken: dict[str, list[str]] = collections.defaultdict(list)
    for slow, at_once in ((False, 1), (True, options.jobs)):
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            todo = [fault for fault in faults if fault.slow == slow for _ in range(options.tries)]
            for fault, result in zip(todo, pool.map(lambda fault: result_of(fault, hosts), todo)):
                if isinstance(result, dict):
                    tries[fault.name].append(result)
                else:
                    broken[fault.name].append(result)
                if len(tries[fault.name]) + len(broken[fault.name]) == options.tries:
                    outcomes = collections.Counter(one["outcome"] for one in tries[fault.name])
                    print(f"{fault.name}: {dict(outcomes)}", *broken[fault.name], file=sys.stderr, flush=True)
    return tries, {name: reasons for name, reasons in broken.items() if reasons}


def result_of(fault: Fault, hosts: Hosts) -> dict | str:
    try:
        return attempt(fault, hosts)
    except Broken as reason:
        return str(reason)


if __name__ == "__main__":
    main()
