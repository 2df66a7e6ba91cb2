"""The plots, from the stored results."""

from side_by_side import svg
from side_by_side.cases import OURS
from side_by_side.results import RESULTS, rows
from side_by_side.sides import TITLES

# Colours that can be told apart by the colour-blind (Okabe and Ito).
COLOURS = {
    OURS: "#0072b2",
    "pytorch": "#d55e00",
    "torchvision": "#d55e00",
    "pillow": "#e69f00",
    "grain": "#009e73",
    "tf.data": "#cc79a7",
    "spdl": "#7d6ab5",
    "dataloader-rs": "#7f7f7f",
}


def write(stored: dict[str, dict]) -> None:
    """One file a plot; a plot of which nothing has been measured is left as it is."""
    all_rows = [row for result in stored.values() for row in rows(result)]
    for name, draw in PLOTS.items():
        if name == "overview":
            series = of_sides({row["overview"]: row["ratio"] for row in all_rows if "overview" in row})
        else:
            series = of_sides({row["plot"][1]: row["figures"] for row in all_rows if row.get("plot", [None])[0] == name})
        if series:
            (RESULTS / f"{name}.svg").write_text(draw(series))


def of_sides(spreads: dict) -> list[svg.Series]:
    """The medians, a series for each side that has any."""
    found = {
        name: {place: by_side[name]["median"] for place, by_side in spreads.items() if name in by_side} for name in TITLES
    }
    return [svg.Series(TITLES[name], COLOURS[name], values) for name, values in found.items() if values]


def overview(series: list[svg.Series]) -> str:
    subtitle = "A peer's figure by this loader's: above 1 this loader is ahead, below 1 the peer."
    return svg.bars("All workloads", subtitle, svg.Axis("times, logarithmic scale", base=1), series)


def overhead(series: list[svg.Series]) -> str:
    subtitle = "Time per batch; without workers in process. Lower is better."
    return svg.lines("A batch of 64 integers", subtitle, svg.Axis("microseconds, logarithmic scale"), "workers", series)


def bandwidth(series: list[svg.Series]) -> str:
    subtitle = "Time per batch, 1 worker. Lower is better."
    return svg.bars("What a batch's bytes cost", subtitle, svg.Axis("microseconds, logarithmic scale"), series)


def images(series: list[svg.Series]) -> str:
    subtitle = "JPEGs of 500 x 375 decoded, cropped, resized to 224 x 224, flipped, normalised. Higher is better."
    return svg.bars("Photographs", subtitle, svg.Axis("images a second", logarithmic=False), series)


def start(series: list[svg.Series]) -> str:
    subtitle = "A million file names; workers are started in between. Lower is better."
    axis = svg.Axis("milliseconds, logarithmic scale")
    return svg.lines("From iter() to the first batch", subtitle, axis, "workers", series)


def memory(series: list[svg.Series]) -> str:
    subtitle = "After 400 shuffled batches, the largest of the workers. Lower is better."
    return svg.bars("Private memory of a worker", subtitle, svg.Axis("megabytes, logarithmic scale"), series)


PLOTS = {
    "overview": overview,
    "overhead": overhead,
    "bandwidth": bandwidth,
    "images": images,
    "start": start,
    "memory": memory,
}
