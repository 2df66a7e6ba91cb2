"""Makes the plots from the stored results."""

from side_by_side import svg
from side_by_side.cases import OURS
from side_by_side.results import RESULTS, rows
from side_by_side.sides import TITLES

# Colours that colour-blind people can distinguish (Okabe and Ito).
COLOURS = {
    OURS: "#0072b2",
    "pytorch": "#d55e00",
    "torchvision": "#8c3b1f",
    "pillow": "#e69f00",
    "grain": "#009e73",
    "tf.data": "#cc79a7",
    "spdl": "#7d6ab5",
    "dataloader-rs": "#7f7f7f",
}


def write(stored: dict[str, dict]) -> None:
    """Writes one file per plot. A plot without any measured figure is not changed."""
    all_rows = [row for result in stored.values() for row in rows(result)]
    for name, draw in PLOTS.items():
        if name == "overview":
            spreads = {row["overview"]: row["ratio"] for row in all_rows if "overview" in row}
        else:
            in_plot = [row for row in all_rows if row.get("plot", [None])[0] == name]
            spreads = {row["plot"][1]: row["figures"] for row in in_plot}
        if series := of_sides(spreads):
            (RESULTS / f"{name}.svg").write_text(draw(list(spreads), series))


def of_sides(spreads: dict) -> list[svg.Series]:
    """Returns a series of medians for each side that has any, without zeros, because the scale may be logarithmic."""
    series = []
    for name, title in TITLES.items():
        found = {label: by_side[name]["median"] for label, by_side in spreads.items() if name in by_side}
        if values := {label: value for label, value in found.items() if value > 0}:
            series.append(svg.Series(title, COLOURS[name], values))
    return series


def overview(labels: list, series: list[svg.Series]) -> str:
    subtitle = "The figure of a peer divided by that of this loader: above 1 this loader is better, below 1 the peer."
    return svg.bars("All workloads", subtitle, svg.Axis("ratio, logarithmic scale", base=1), labels, series)


def overhead(labels: list, series: list[svg.Series]) -> str:
    subtitle = "Time per batch; 0 workers means in process. Lower is better."
    axis = svg.Axis("microseconds, logarithmic scale")
    return svg.lines("A batch of 64 integers", subtitle, axis, "workers", labels, series)


def bandwidth(labels: list, series: list[svg.Series]) -> str:
    subtitle = "Time per batch, 1 worker. Lower is better."
    return svg.bars("Time per batch by size", subtitle, svg.Axis("microseconds, logarithmic scale"), labels, series)


def images(labels: list, series: list[svg.Series]) -> str:
    subtitle = "JPEGs of 500 x 375 decoded, cropped, resized to 224 x 224, flipped, normalised. Higher is better."
    return svg.bars("Photographs", subtitle, svg.Axis("images per second", logarithmic=False), labels, series)


def start(labels: list, series: list[svg.Series]) -> str:
    subtitle = "A million file names; includes the start of the workers. Lower is better."
    axis = svg.Axis("milliseconds, logarithmic scale")
    return svg.lines("From iter() to the first batch", subtitle, axis, "workers", labels, series)


def memory(labels: list, series: list[svg.Series]) -> str:
    subtitle = "After 400 shuffled batches; maximum of the workers. Lower is better."
    return svg.bars("Private memory of a worker", subtitle, svg.Axis("megabytes, logarithmic scale"), labels, series)


PLOTS = {
    "overview": overview,
    "overhead": overhead,
    "bandwidth": bandwidth,
    "images": images,
    "start": start,
    "memory": memory,
}
