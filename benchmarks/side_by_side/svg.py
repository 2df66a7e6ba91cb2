"""Writes two kinds of plot as SVG: grouped bars, and lines. Plots have a light background, so that they are readable
on a dark page too."""

import dataclasses
import html
import math

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
INK, FAINT, PAPER = "#24292f", "#d8dee4", "#fbfcfd"
WIDTH, TOP, BOTTOM, LEFT, RIGHT = 960, 84, 64, 84, 24
HEIGHT = 430
LETTER = 6.6  # mean width of a letter at the usual size
NARROW = 20  # bars narrower than this have no room for their value
BAR_SHARE = 0.82  # fraction of the width of a group that its bars take


@dataclasses.dataclass
class Series:
    """The figures of one side, by the label of their group or of their point on the horizontal axis."""

    title: str
    colour: str
    values: dict


@dataclasses.dataclass
class Axis:
    """The vertical axis."""

    title: str
    logarithmic: bool = True
    base: float | None = None  # the value at which bars begin, instead of the foot of the axis

    def scale(self, series: list[Series]) -> "Scale":
        values = [value for one in series for value in one.values.values()]
        if not self.logarithmic:
            return Scale.linear(max(values))
        return Scale.powers(values + ([self.base] if self.base else []))


@dataclasses.dataclass
class Scale:
    """The scale of the vertical axis, and its marks."""

    marks: list[float]
    logarithmic: bool

    @classmethod
    def powers(cls, values: list[float]) -> "Scale":
        """Returns a logarithmic scale from a power of ten to another one."""
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls([10.0**power for power in range(low, max(high, low + 1) + 1)], True)

    @classmethod
    def linear(cls, largest: float) -> "Scale":
        """Returns a linear scale from 0 in round steps."""
        power = 10 ** math.floor(math.log10(largest))
        step = next(power * part for part in (0.1, 0.2, 0.5, 1) if largest <= 10 * power * part)
        return cls([step * number for number in range(math.ceil(largest / step) + 1)], False)

    def y(self, value: float) -> float:
        measure = math.log10 if self.logarithmic else float
        share = (measure(value) - measure(self.marks[0])) / (measure(self.marks[-1]) - measure(self.marks[0]))
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


class Drawing:
    """The elements of an SVG file."""

    def __init__(self, title: str, subtitle: str):
        self.elements = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{PAPER}"/>']
        self.text(LEFT, 28, title, size=17, weight=600)
        self.text(LEFT, 47, subtitle, size=12)

    def text(self, x: float, y: float, text: str, size=12, anchor="start", weight=400, turn=0):
        turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
            f'fill="{INK}"{turned}>{html.escape(text)}</text>'
        )

    def rectangle(self, x: float, y: float, width: float, height: float, colour: str, about: str = ""):
        title = f"<title>{html.escape(about)}</title>" if about else ""
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">{title}</rect>'
        )

    def line(self, points: list[tuple[float, float]], colour: str, width: float = 1.0):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.elements.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    def dot(self, x: float, y: float, colour: str, about: str):
        title = f"<title>{html.escape(about)}</title>"
        self.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">{title}</circle>')

    def legend(self, series: list[Series]):
        x = LEFT
        for one in series:
            self.rectangle(x, 59, 11, 11, one.colour)
            self.text(x + 16, 69, one.title)
            x += 40 + LETTER * len(one.title)

    def axis(self, scale: Scale, title: str):
        for mark in scale.marks:
            y = scale.y(mark)
            self.line([(LEFT, y), (WIDTH - RIGHT, y)], FAINT)
            self.text(LEFT - 8, y + 4, shown(mark), anchor="end")
        self.text(20, (TOP + HEIGHT - BOTTOM) / 2, title, anchor="middle", turn=-90)

    def finished(self) -> str:
        head = '<svg xmlns="http://www.w3.org/2000/svg" '
        head += f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{html.escape(FONT)}">'
        return "\n".join([head, *self.elements, "</svg>", ""])


def bars(title: str, subtitle: str, axis: Axis, groups: list[str], series: list[Series]) -> str:
    """Draws a group of bars for each of `groups`, with a bar for each of `series` that has a value there."""
    drawing = Drawing(title, subtitle)
    scale = axis.scale(series)
    drawing.axis(scale, axis.title)
    drawing.legend(series)
    foot = scale.y(axis.base) if axis.base else HEIGHT - BOTTOM
    group_width = (WIDTH - LEFT - RIGHT) / len(groups)
    for number, group in enumerate(groups):
        left = LEFT + number * group_width
        present = [one for one in series if group in one.values]
        # Bars have the same width in all groups, even if a group has fewer bars.
        width = min(group_width * BAR_SHARE / len(series), 36)
        start = left + (group_width - width * len(present)) / 2
        for bar, one in enumerate(present):
            y = scale.y(one.values[group])
            top, height = min(y, foot), max(abs(foot - y), 1)
            about = f"{one.title}, {group}: {shown(one.values[group])}"
            drawing.rectangle(start + bar * width, top, width - 1.5, height, one.colour, about)
            if width >= NARROW:
                drawing.text(start + (bar + 0.5) * width, top - 4, shown(one.values[group]), size=9, anchor="middle")
        for row, words in enumerate(wrapped(group, group_width)):
            drawing.text(left + group_width / 2, HEIGHT - BOTTOM + 18 + 14 * row, words, anchor="middle", size=11)
    drawing.line([(LEFT, foot), (WIDTH - RIGHT, foot)], INK)
    return drawing.finished()


def lines(title: str, subtitle: str, axis: Axis, across: str, labels: list[int], series: list[Series]) -> str:
    """Draws a line for each of `series` over `labels`, which have equal distances on the horizontal axis."""
    drawing = Drawing(title, subtitle)
    scale = axis.scale(series)
    drawing.axis(scale, axis.title)
    drawing.legend(series)
    step = (WIDTH - LEFT - RIGHT) / len(labels)
    middles = {label: LEFT + (number + 0.5) * step for number, label in enumerate(labels)}
    for label, x in middles.items():
        drawing.text(x, HEIGHT - BOTTOM + 20, str(label), anchor="middle")
    drawing.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, across, anchor="middle")
    for one in series:
        points = [(middles[label], scale.y(value)) for label, value in one.values.items()]
        drawing.line(points, one.colour, 2.2)
        for (x, y), (label, value) in zip(points, one.values.items()):
            drawing.dot(x, y, one.colour, f"{one.title}, {label}: {shown(value)}")
    drawing.line([(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)], INK)
    return drawing.finished()


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def wrapped(text: str, width: float) -> list[str]:
    """Splits a text into rows of at most `width`."""
    rows = [""]
    for word in text.split():
        longer = f"{rows[-1]} {word}".strip()
        if len(longer) * LETTER > width and rows[-1]:
            rows.append(word)
        else:
            rows[-1] = longer
    return rows
