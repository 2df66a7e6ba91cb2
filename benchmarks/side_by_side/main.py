"""The command line of `benchmarks/run`."""

import argparse
import pathlib
import sys

from side_by_side import data, measure, plots, results, scaling, sides, table
from side_by_side.cases import OURS, Case, identity, plan

# Estimated time of a process that was not measured before.
USUAL_SECONDS = 3.0


def main(about: str) -> None:
    options = parse(about)
    if options.plots:
        draw()
        return
    if options.scaling:
        scaling.write(results.load())
        return
    cases = [case for case in plan() if not options.only or case.workload in options.only]
    if not cases:
        sys.exit(f"no workload {options.only}; there are {sorted({case.workload for case in plan()})}")
    if options.install:
        sides.install()
    python = (options.python or sides.VENV / "bin/python").absolute()
    taking_part, missing = sides.find(python, cases)
    for name, reason in missing.items():
        print(f"without {name}: {reason}", file=sys.stderr)
    cases = [case for case in cases if case.program not in missing]
    cases = with_data(cases, python)
    seconds = estimate(cases, taking_part) * options.rounds
    print(f"{len(cases)} cases, {options.rounds} rounds: about {max(1, round(seconds / 60))} minutes", file=sys.stderr)
    differing = []
    for workload in dict.fromkeys(case.workload for case in cases):
        of_workload = [case for case in cases if case.workload == workload]
        differing += run(workload, of_workload, taking_part, missing, options.rounds)
    if is_complete(cases, taking_part):
        draw()
    else:
        print("results/ is left as it is: it is for several sides", file=sys.stderr)
    if differing:
        sys.exit(f"not all sides gave the same values: {differing}")


def parse(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="make benchmarks/.venv with the peers, then measure")
    parser.add_argument("--python", type=pathlib.Path, help="Python that has the peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="WORKLOAD", help="only this workload; may be repeated")
    parser.add_argument("--plots", action="store_true", help="tables and plots again, from results/")
    parser.add_argument("--scaling", action="store_true", help="simulate more cores with the costs in results/")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("at least one round")
    return options


def with_data(cases: list[Case], python: pathlib.Path) -> list[Case]:
    """Returns the cases whose data exists or could be made."""
    problems = {what: data.make(what, python) for what in {case.needs for case in cases if case.needs}}
    for what, problem in problems.items():
        if problem:
            print(f"without {what}: {problem}", file=sys.stderr)
    return [case for case in cases if not problems.get(case.needs)]


def estimate(cases: list[Case], taking_part: list[sides.Side]) -> float:
    """Returns the estimated seconds of a round, from the times of the processes in the last results."""
    known = {
        (workload, identity(case), name): seconds
        for workload, result in results.load().items()
        for case in result["cases"]
        for name, seconds in case["seconds"].items()
    }
    return sum(
        known.get((case.workload, identity(case.arguments()), side.name), USUAL_SECONDS)
        for case in cases
        for side in taking_part
        if side.takes_part(case)
    )


def run(
    workload: str, cases: list[Case], taking_part: list[sides.Side], missing: dict[str, str], rounds: int
) -> list[str]:
    """Measures a workload and stores the results. Returns the titles of cases in which sides gave different values."""
    measured = []
    for case in cases:
        result = measure.measure(case, taking_part, rounds)
        measured.append(result)
        for row in result["rows"]:
            print("; ".join([row["title"], *told(row)]), flush=True)
        for name, reason in {**result["not_applicable"], **result["failed"]}.items():
            print(f"    {sides.TITLES[name]}: {reason}", flush=True)
    if is_complete(cases, taking_part):
        versions = {name: version for side in taking_part for name, version in side.versions.items()}
        results.store(workload, measure.machine(), versions, missing, measured)
    return [case["rows"][0]["title"] for case in measured if case["differing"]]


def is_complete(cases: list[Case], taking_part: list[sides.Side]) -> bool:
    """False if the peers of the cases are missing. Their stored results then stay."""
    return len(taking_part) > 1 or all(case.sides == (OURS,) for case in cases)


def told(row: dict) -> list[str]:
    """Returns the medians of a row as text, which is printed during the measurement."""
    figures = row["figures"].items()
    return [f"{sides.TITLES[name]} {table.number(spread['median'])} {row['unit']}".strip() for name, spread in figures]


def draw() -> None:
    stored = results.load()
    table.write(stored)
    plots.write(stored)
