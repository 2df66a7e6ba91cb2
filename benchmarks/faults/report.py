"""Formats the tables, and reads and writes the file with every try."""

import collections
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import time

from faults import BATCH_SIZE, BATCHES, DROP, EPOCH, FAULTS, MAIN, SAMPLE_SECONDS, WORKERS, Fault
from tries import DEADLINE_SECONDS

LONGEST = 110  # characters of a message in a table


def tables(tries: dict[str, list[dict]]) -> str:
    parts = [
        ("An epoch, read to its end", epoch_table, EPOCH),
        ("The iterator, dropped in mid-epoch", drop_table, DROP),
        ("Main, which dies in mid-epoch", main_table, MAIN),
    ]
    texts = []
    for title, table, faults in parts:
        tried = [(fault, tries[fault.name]) for fault in faults if tries.get(fault.name)]
        if tried:
            texts.append("\n".join([f"### {title}", "", *table(tried)]))
    return "\n\n".join(texts)


def epoch_table(tried: list[tuple[Fault, list[dict]]]) -> list[str]:
    outcomes = ["survived", "lost", "hung", "wrong"]
    heads = ["fault", "tries", *outcomes, "to the outcome", "to the program's end", "left over", "what the user sees"]
    rows = []
    for fault, of in tried:
        counts = collections.Counter(one["outcome"] for one in of)
        shown = [str(counts[outcome]) for outcome in outcomes]
        rows.append([fault.title, str(len(of)), *shown, seconds(of, "seconds"), end(of), left(of), seen(of)])
    return table(heads, rows)


def drop_table(tried: list[tuple[Fault, list[dict]]]) -> list[str]:
    heads = ["fault", "tries", "returned", "hung", "to the return", "workers running 2 s later"]
    heads += ["to the program's end", "left over"]
    rows = []
    for fault, of in tried:
        counts = collections.Counter(one["outcome"] for one in of)
        running = [one["workers_running"][-1] for one in of if one.get("workers_running")]
        shown = [str(counts["returned"]), str(counts["hung"]), seconds(of, "seconds"), several(running)]
        rows.append([fault.title, str(len(of)), *shown, end(of), left(of)])
    return table(heads, rows)


def main_table(tried: list[tuple[Fault, list[dict]]]) -> list[str]:
    heads = ["fault", "tries", "workers gone within 1 s", "5 s", f"{DEADLINE_SECONDS:.0f} s", "left then"]
    heads += ["to the last worker's end", "to main's end", "files left", "last line on stderr"]
    rows = []
    for fault, of in tried:
        within = [sum(one["seconds"] is not None and one["seconds"] <= limit for one in of) for limit in (1, 5)]
        within.append(sum(one["seconds"] is not None for one in of))
        shown = [*map(str, within), str(len(of) - within[-1]), seconds(of, "seconds"), end(of), files(of)]
        rows.append([fault.title, str(len(of)), *shown, most_common([one["last_words"] for one in of])])
    return table(heads, rows)


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def seconds(of: list[dict], what: str) -> str:
    """Formats median and range of the tries that have this time."""
    values = [one[what] for one in of if one[what] is not None]
    if not values:
        return "–"
    return f"{duration(statistics.median(values))} ({duration(min(values))}–{duration(max(values))})"


def duration(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.1f} s"


def end(of: list[dict]) -> str:
    never = sum(one["exit_seconds"] is None for one in of)
    return seconds(of, "exit_seconds") + (f"; never: {never}" if never else "")


def left(of: list[dict]) -> str:
    """Formats what is left after the end of the program. Programs that hang are not counted: they have not ended."""
    ended = [one for one in of if one["exit_seconds"] is not None]
    processes = collections.Counter(role for one in ended for role in one["left"])
    found = [f"{role}: {count}" for role, count in sorted(processes.items())]
    if (names := files(ended)) != "–":
        found.append(names)
    return "; ".join(found) or "–"


def files(of: list[dict]) -> str:
    """Formats the number of tries that left files, by folder."""
    folders = {"/dev/shm": "named_memory", "$TMPDIR": "temporary"}
    counts = {folder: sum(bool(one[field]) for one in of) for folder, field in folders.items()}
    return "; ".join(f"{folder}: {count}" for folder, count in counts.items() if count) or "–"


def several(values: list[int]) -> str:
    counts = collections.Counter(values)
    return ", ".join(f"{value} in {count}" for value, count in sorted(counts.items())) or "–"


def seen(of: list[dict]) -> str:
    """Returns the most common error that reached the program, or the last line on standard error if there was none."""
    messages = []
    for one in of:
        caught = one.get("errors") or []
        if one["outcome"] == "lost":
            messages.append(one["error"])
        elif caught:
            messages.append(f"caught {caught[0]}")
        else:
            messages.append(one["last_words"])
    return most_common(messages)


def most_common(messages: list[str | None]) -> str:
    counts = collections.Counter(plain(message) for message in messages)
    (message, count), *others = counts.most_common()
    text = message if len(message) <= LONGEST else message[:LONGEST] + "…"
    return f"{text} ({count} of {len(messages)})" if others else text


def plain(message: str | None) -> str:
    """Removes the parts that differ from try to try."""
    if message is None:
        return "nothing"
    text = re.sub(r"(pid(?:\(s\))?) [\d, ]*\d", r"\1 N", message.strip())
    text = re.sub(r"listener-\w+", "listener-*", re.sub(r"/\S*/(pymp|tmp)[-_]?\w+", r"\1-*", text))
    return text.removesuffix(":")


def stored(path: pathlib.Path) -> dict[str, list[dict]]:
    """Reads the tries in a file, by fault."""
    tries = collections.defaultdict(list)
    if path.exists():
        for one in json.loads(path.read_text())["tries"]:
            tries[one["fault"]].append(one)
    return tries


def store(path: pathlib.Path, tries: dict[str, list[dict]], broken: dict[str, list[str]], jobs: int) -> None:
    """Writes the tries as one JSON document, with one try per line."""
    about = {
        "machine": machine(),
        "versions": {"python": platform.python_version(), "torch": importlib.metadata.version("torch")},
        "setting": {
            "workers": WORKERS,
            "batches": BATCHES,
            "batch_size": BATCH_SIZE,
            "sample_seconds": SAMPLE_SECONDS,
            "deadline_seconds": DEADLINE_SECONDS,
            "slow_tries_at_once": jobs,
        },
        "broken": broken,
    }
    heads = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in about.items()]
    lines = [f"  {json.dumps(one)}" for name in FAULTS for one in tries.get(name, [])]
    path.write_text("{\n" + ",\n".join(heads) + ',\n "tries": [\n' + ",\n".join(lines) + "\n ]\n}\n")


def machine() -> dict:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": first_field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": first_field("/proc/meminfo", "MemTotal"),
        "kernel": os.uname().release,
        "load_average": os.getloadavg()[0],
    }


def first_field(path: str, name: str) -> str:
    for text in pathlib.Path(path).read_text().splitlines():
        field, _, value = text.partition(":")
        if field.strip() == name:
            return value.strip()
    return "unknown"
