"""The tables: one a workload, a row a figure, a column a side."""

from side_by_side.cases import OURS
from side_by_side.results import RESULTS, rows
from side_by_side.sides import HERE, TITLES

START, END = "<!-- tables: written by `run` -->", "<!-- end of tables -->"
WHERE_NAMED = ("figures", "not_applicable", "failed")
HEADINGS = {
    "overhead": "Batches with next to nothing in them",
    "bandwidth": "Batches of many bytes",
    "tokens": "Tokens from a file",
    "images": "Photographs",
    "start": "Start",
    "memory": "Memory",
    "stragglers": "Slow samples",
    "shutdown": "Shutdown",
    "steady": "Steady state",
}


def write(stored: dict[str, dict]) -> None:
    text = "\n\n".join(part for workload, result in stored.items() for part in (section(workload, result), notes(result)))
    (RESULTS / "table.md").write_text(text + "\n")
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{readme} has no place for the tables")
    readme.write_text(f"{before}{START}\n{text}\n{END}{after}")


def section(workload: str, result: dict) -> str:
    of_workload = rows(result)
    sides = [name for name in TITLES if any(name in row[of] for row in of_workload for of in WHERE_NAMED)]
    lines = [f"### {HEADINGS[workload]}", ""]
    lines.append("| | " + " | ".join(TITLES[name] for name in sides) + " |")
    lines.append("|---" * (len(sides) + 1) + "|")
    medians = {row["title"]: row["figures"][OURS]["median"] for row in of_workload}
    for row in of_workload:
        lines.append("| " + " | ".join([row["title"], *(cell(row, name, medians) for name in sides)]) + " |")
    return "\n".join(lines)


def cell(row: dict, name: str, medians: dict[str, float]) -> str:
    """Ours with its range; a peer's with how many times better ours is."""
    figures = row["figures"].get(name)
    if figures is None:
        return "failed" if name in row["failed"] else "–"
    text = f"{number(figures['median'])} {row['unit']}".strip()
    if name == OURS:
        text += f" ({number(figures['min'])}–{number(figures['max'])})"
        if "bound" in row and row["bound"] in medians:
            text += f", {medians[row['bound']] / figures['median']:.0%} of memcpy's speed"
    elif name in row.get("ratio", {}):
        text += f" ({number(row['ratio'][name]['median'])} x)"
    return text


def notes(result: dict) -> str:
    """Everything that a figure cannot do without."""
    machine, cases = result["machine"], result["cases"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    counts = sorted({len(case["load_average"]) for case in cases})
    loads = [load for case in cases for load in case["load_average"]]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory']} memory, Linux {machine['kernel']}; "
        f"{machine['rustc']}; {versions}; {' or '.join(map(str, counts))} rounds, {machine['date']}, "
        f"load average {min(loads):.1f} to {max(loads):.1f}."
    ]
    for what, reasons in (("Missing", result["missing"]), ("Failed", merged(cases, "failed"))):
        if reasons:
            lines.append(f"{what}: " + "; ".join(f"{name} ({reason})" for name, reason in reasons.items()) + ".")
    if differing := sorted({name for case in cases for name in case["differing"]}):
        lines.append(f"Gave other values than this loader: {', '.join(TITLES[name] for name in differing)}.")
    return "\n".join(lines)


def merged(cases: list[dict], what: str) -> dict[str, str]:
    return {TITLES[name]: reason for case in cases for name, reason in case[what].items()}


def number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
