"""Reads and writes the results: one file per workload, so that a workload can be measured again alone."""

import json

from side_by_side.cases import identity, plan
from side_by_side.sides import HERE

RESULTS = HERE / "results"


def store(workload: str, machine: dict, versions: dict, missing: dict, cases: list[dict]) -> None:
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": machine, "versions": versions, "missing": missing, "cases": cases}
    (RESULTS / f"{workload}.json").write_text(json.dumps(result, indent=1) + "\n")


def load() -> dict[str, dict]:
    """Returns the stored results by workload, in the order of the plan. The titles are those of the plan, so that a
    title can change without a new measurement."""
    planned: dict[str, dict] = {}
    for case in plan():
        planned.setdefault(case.workload, {})[identity(case.arguments())] = case.rows
    found = {}
    for workload, cases in planned.items():
        path = RESULTS / f"{workload}.json"
        if path.exists():
            found[workload] = json.loads(path.read_text())
            for case in found[workload]["cases"]:
                for stored, row in zip(case["rows"], cases.get(identity(case), [])):
                    stored |= row.labels()
    return found


def rows(result: dict) -> list[dict]:
    """Returns all rows of a workload, each with the options of its case."""
    return [{**row, "options": case["options"]} for case in result["cases"] for row in case["rows"]]
