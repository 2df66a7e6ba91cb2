"""Reads and writes the results: one file per workload, so that a workload can be measured again alone."""

import json

from side_by_side.cases import plan
from side_by_side.sides import HERE

RESULTS = HERE / "results"


def store(workload: str, machine: dict, versions: dict, missing: dict, cases: list[dict]) -> None:
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": machine, "versions": versions, "missing": missing, "cases": cases}
    (RESULTS / f"{workload}.json").write_text(json.dumps(result, indent=1) + "\n")


def load() -> dict[str, dict]:
    """Returns the stored results by workload, in the order of the plan."""
    files = {name: RESULTS / f"{name}.json" for name in dict.fromkeys(case.workload for case in plan())}
    return {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}


def rows(result: dict) -> list[dict]:
    """Returns all rows of a workload, each with the options of its case."""
    return [{**row, "options": case["options"]} for case in result["cases"] for row in case["rows"]]
