"""Writes the tables: one table per workload, one row per figure, one column per side."""

import pathlib

from side_by_side.cases import OURS
from side_by_side.results import RESULTS, rows
from side_by_side.sides import FRAMEWORKS, HERE, TITLES

START, END = "<!-- tables: written by `run` -->", "<!-- end of tables -->"
PERFORMANCE = HERE.parent / "docs/performance.md"
PYTHON = HERE.parent / "docs/python.md"
WHERE_NAMED = ("figures", "not_applicable", "failed")
HEADINGS = {
    "overhead": "Small batches",
    "bandwidth": "Large batches",
    "tokens": "Tokens from a file",
    "parquet": "Parquet",
    "arrow": "Arrow IPC",
    "json-lines": "JSON lines",
    "csv": "CSV",
    "tar": "tar archives",
    "token-files": "Token files",
    "format-memory": "Memory of a worker that reads files",
    "images": "Photographs",
    "tar-images": "Photographs in tar archives",
    "cached-images": "Photographs, kept decoded and scaled",
    "start": "Start",
    "memory": "Memory",
    "stragglers": "Slow samples",
    "shutdown": "Shutdown",
    "steady": "Steady state",
    "resume": "Resume in mid-epoch",
    "killed": "A worker is killed in mid-epoch",
    "shutdown-faults": "Shutdown with a faulty worker",
    "trace": "The cost of a trace",
}


def write(stored: dict[str, dict]) -> None:
    stored = dict(stored)
    for name, page in [*((framework, PERFORMANCE) for framework in FRAMEWORKS), ("python", PYTHON)]:
        if result := stored.pop(name, None):
            text = f"{table(result)}\n\n{origin(result)}"
            put_into(page, f"<!-- {name}: written by `benchmarks/run` -->", f"<!-- end of {name} -->", text)
    parts = [section(workload, result) for workload, result in stored.items()]
    text = "\n\n".join([*parts, *origins(stored)])
    (RESULTS / "table.md").write_text(text + "\n")
    put_into_readme(START, END, text)


def put_into_readme(start: str, end: str, text: str) -> None:
    put_into(HERE / "README.md", start, end, text)


def put_into(page: pathlib.Path, start: str, end: str, text: str) -> None:
    """Replaces the text between two marks in a page."""
    before, _, rest = page.read_text().partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no place for what belongs after {start}")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}")


def section(workload: str, result: dict) -> str:
    return f"### {HEADINGS[workload]}\n\n{table(result)}"


def table(result: dict) -> str:
    of_workload = rows(result)
    sides = [name for name in TITLES if any(name in row[of] for row in of_workload for of in WHERE_NAMED)]
    lines = ["| | " + " | ".join(TITLES[name] for name in sides) + " |"]
    lines.append("|---" * (len(sides) + 1) + "|")
    medians = {row["title"]: row["figures"][OURS]["median"] for row in of_workload}
    for row in of_workload:
        lines.append("| " + " | ".join([row["title"], *(cell(row, name, medians) for name in sides)]) + " |")
    if failed := merged(result["cases"], "failed"):
        lines += ["", "Failed: " + "; ".join(f"{name} ({reason})" for name, reason in failed.items()) + "."]
    if differing := {name for case in result["cases"] for name in case["differing"]}:
        names = ", ".join(TITLES[name] for name in sorted(differing))
        lines += ["", f"Values differ from those of this loader: {names}."]
    return "\n".join(lines)


def cell(row: dict, name: str, medians: dict[str, float]) -> str:
    """Formats a cell: for this loader the figure and its range, for a peer the figure and how many times better this
    loader is."""
    figures = row["figures"].get(name)
    if figures is None:
        return "failed" if name in row["failed"] else "–" if name in row["not_applicable"] else ""
    text = f"{number(figures['median'])} {row['unit']}".strip()
    if name == OURS:
        text += f" ({number(figures['min'])}–{number(figures['max'])})"
        if row.get("bound") in medians:
            share = medians[row["bound"]] / figures["median"]
            if "trace" in row["bound"]:
                text += f", {share:.1%} of the speed without it"
            else:
                text += f", {share:.0%} of the speed of memcpy"
    elif name in row.get("ratio", {}):
        text += f" ({number(row['ratio'][name]['median'])} x)"
    return text


def origins(stored: dict[str, dict]) -> list[str]:
    """Returns the machine, versions and dates of the results: one line for all workloads with the same values."""
    workloads: dict[str, list[str]] = {}
    for workload, result in stored.items():
        workloads.setdefault(origin(result), []).append(HEADINGS[workload])
    if len(workloads) == 1:
        return list(workloads)
    return [f"{', '.join(headings)}: {text}" for text, headings in workloads.items()]


def origin(result: dict) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(result["versions"].items()))
    rounds = sorted({len(case["load_average"]) for case in result["cases"]})
    text = f"{machine['processor']}, {machine['cores']} cores, {machine['memory']} memory, Linux {machine['kernel']}; "
    text += f"{machine['rustc']}; {versions}; rounds: {' or '.join(map(str, rounds))}; {machine['date']}."
    if result["missing"]:
        text += " Missing: " + "; ".join(f"{name} ({reason})" for name, reason in result["missing"].items()) + "."
    return text


def merged(cases: list[dict], what: str) -> dict[str, str]:
    return {TITLES[name]: reason for case in cases for name, reason in case[what].items()}


def number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
