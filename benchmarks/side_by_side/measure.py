"""Runs one case: all sides in turn, round after round, each time in a separate process."""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

from side_by_side.cases import DECODER, OURS, Case, NoFigure, Row
from side_by_side.sides import HERE, Side, last_line

# Maximum time of a process, so that a peer that hangs does not stop the whole run.
LIMIT_SECONDS = 300
NOT_APPLICABLE = 3


class Unsuccessful(Exception):
    """Why a process printed no line."""


class NotApplicable(Unsuccessful):
    """Why the side does not support the workload."""


def measure(case: Case, sides: list[Side], rounds: int) -> dict:
    """Measures the case and returns everything that `results/` keeps of it."""
    taking_part = {side.name: side for side in sides if side.takes_part(case)}
    lines: dict[str, list[dict]] = {name: [] for name in taking_part}
    seconds: dict[str, list[float]] = {name: [] for name in taking_part}
    not_applicable, failed, loads = {}, {}, []
    for number in range(rounds):
        loads.append(os.getloadavg()[0])
        for name in turns(list(taking_part), number):
            started = time.monotonic()
            try:
                lines[name].append(run(taking_part[name].of(case)))
            except Unsuccessful as reason:
                if name == OURS:
                    sys.exit(f"{case.rows[0].title}: this loader: {reason}")
                (not_applicable if isinstance(reason, NotApplicable) else failed)[name] = str(reason)
                del taking_part[name]
            seconds[name].append(time.monotonic() - started)
    for name in failed:
        del lines[name]
    checks = {name: {json.dumps(line.get("check"), sort_keys=True) for line in of} for name, of in lines.items()}
    return {
        **case.arguments(),
        "load_average": loads,
        "rows": [evaluate(row, lines, not_applicable, failed) for row in case.rows],
        "differing": [name for name, found in checks.items() if found and found != checks[OURS] and name != DECODER],
        "not_applicable": not_applicable,
        "failed": failed,
        "seconds": {name: statistics.median(of) for name, of in seconds.items() if of},
        "lines": lines,
    }


def turns(names: list[str], number: int) -> list[str]:
    """Returns the order of the sides in a round. The first side changes, because later sides find warmer caches and a
    busier machine."""
    first = number % len(names)
    return names[first:] + names[:first]


def run(command: list[str]) -> dict:
    """Runs a command and returns the last line that it prints."""
    # The process gets a session of its own, so that its workers can be killed with it.
    process = subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Unsuccessful(f"not finished within {LIMIT_SECONDS} s") from None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode == NOT_APPLICABLE:
        raise NotApplicable(last_line(errors))
    if process.returncode != 0:
        raise Unsuccessful(f"status {process.returncode}: {last_line(errors)}")
    try:
        return json.loads(last_line(output))
    except ValueError:
        raise Unsuccessful(f"no JSON: {last_line(output)}") from None


def evaluate(row: Row, lines: dict[str, list[dict]], not_applicable: dict[str, str], failed: dict[str, str]) -> dict:
    """Returns the figures of the row: for each side the spread over the rounds and the ratio to this loader, or the
    reason why there are none."""
    values, not_applicable = {}, dict(not_applicable)
    for name, of in lines.items():
        try:
            values[name] = [row.figure(line) for line in of]
        except NoFigure as reason:
            not_applicable[name] = str(reason)
    result = {**row.labels(), "unit": row.unit, "more_is_better": row.more_is_better}
    result["figures"] = {name: spread(of) for name, of in values.items() if of}
    if row.compare:
        # Ratios are computed per round, because the speed of the machine may change from round to round.
        result["ratio"] = {
            name: spread([better(row, theirs, ours) for ours, theirs in zip(values[OURS], of)])
            for name, of in values.items()
            if of and name != OURS
        }
    return result | {"not_applicable": not_applicable, "failed": failed}


def better(row: Row, theirs: float, ours: float) -> float:
    """Returns how many times better this loader is."""
    return ours / theirs if row.more_is_better else theirs / ours


def spread(figures: list[float]) -> dict[str, float]:
    return {"median": statistics.median(figures), "min": min(figures), "max": max(figures)}


def machine() -> dict:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": first_field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": first_field("/proc/meminfo", "MemTotal"),
        "kernel": os.uname().release,
        "rustc": subprocess.run(["rustc", "--version"], capture_output=True, text=True).stdout.strip(),
    }


def first_field(path: str, name: str) -> str:
    for text in pathlib.Path(path).read_text().splitlines():
        field, _, value = text.partition(":")
        if field.strip() == name:
            return value.strip()
    return "unknown"
