"""Draws the pictures of docs/performance.md from bench/results: SVG files whose bytes depend on the results alone.

Each file carries a digest of what it was drawn from, so that a stale one is found without drawing.
`tools/generate_docs.py` calls this; it knows nothing of documents.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIRST_COLOUR = "#0072b2"
OTHER_COLOURS = ("#d55e00", "#e69f00", "#009e73", "#cc79a7", "#7a5c3e", "#56b4e9")
MISSED_COLOUR = "#c0392b"
INK, FAINT, PAPER = "#24292f", "#c9ced6", "#ffffff"
STYLE: Any = {
    "svg.hashsalt": "quire",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8ebef",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
"""A card of its own, white, so that it reads the same on a light and on a dark page."""

ROW_INCHES = 0.46
PERCENTILES = (0, 50, 90, 99, 99.9)
DIGEST = re.compile(r"drawn from ([0-9a-f]{16})")

Claims = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Picture:
    """One picture to draw.

    Args:
        name: the file's, without its ending.
        text: what it shows, for who cannot see it.
        data: all that it is drawn from.
        draw: draws the data and returns the figure.
    """

    name: str
    text: str
    data: Any
    draw: Callable[[Any], Any]

    @property
    def digest(self) -> str:
        """Of the data; the file carries it."""
        return hashlib.sha256(json.dumps([self.name, self.data]).encode()).hexdigest()[:16]

    def path(self, directory: Path) -> Path:
        """Where it is."""
        return directory / f"{self.name}.svg"

    def is_current(self, directory: Path) -> bool:
        """Whether the file there was drawn from these data."""
        path = self.path(directory)
        found = DIGEST.search(path.read_text()) if path.exists() else None
        return found is not None and found[1] == self.digest

    def write(self, directory: Path) -> None:
        """Draw the file."""
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(STYLE)
            figure = self.draw(self.data)
            metadata = {
                "Date": None,
                "Creator": None,
                "Title": self.text,
                "Description": f"drawn from {self.digest}",
            }
            figure.savefig(self.path(directory), format="svg", metadata=metadata)


def pictures(claims: Claims) -> list[Picture]:
    """What there is to draw: two pictures of all claims, then those of each.

    Args:
        claims: of all result files, in the order of the table.
    """
    if not claims:
        return []
    fields = ("claim", "text", "bar", "ratio", "worst", "holds")
    table = [
        {**{field: claim[field] for field in fields}, "ratios": [pair["ratio"] for pair in claim["pairs"]]}
        for claim in claims
    ]
    points = [
        {"load": pair["load"], "over": pair["ratio"] / claim["bar"], "claim": claim["claim"]}
        for claim in claims
        for pair in claim["pairs"]
    ]
    made = [
        Picture("claims", "Every claim's median ratio, its pairs, and its bar", table, draw_claims),
        Picture(
            "pairs", "Every pair's ratio over its bar, against the load average before it", points, draw_pairs
        ),
    ]
    for claim in claims:
        for kind, data in sorted(claim.get("plots", {}).items()):
            name = re.sub(r"[^a-z0-9]+", "-", f"{kind}-{claim['claim']}".lower())
            text = f"{claim['claim']}: {data['title']}"
            made.append(Picture(name, text, data, DRAWERS[kind]))
    return made


def pictures_of_stream(figures: dict[str, Any]) -> list[Picture]:
    """What a stream did over time, from `tools/stream_figures.py`; nothing without its figures."""
    kinds = [kind for kind in ("throughput", "lag") if kind in figures]
    return [
        Picture(
            f"spark-guide-{kind}",
            f"A stream over time: {figures[kind]['title']}",
            figures[kind],
            draw_timeline,
        )
        for kind in kinds
    ]


def write_all(made: Sequence[Picture], directory: Path) -> list[Path]:
    """Draw what is stale, remove what is gone; returns the files that changed."""
    changed = []
    directory.mkdir(parents=True, exist_ok=True)
    for picture in made:
        if not picture.is_current(directory):
            picture.write(directory)
            changed.append(picture.path(directory))
    for path in leftover(made, directory):
        path.unlink()
        changed.append(path)
    return changed


def stale(made: Sequence[Picture], directory: Path) -> list[Path]:
    """The files that `write_all` would change."""
    missing = [picture.path(directory) for picture in made if not picture.is_current(directory)]
    return missing + leftover(made, directory)


def leftover(made: Sequence[Picture], directory: Path) -> list[Path]:
    """Pictures of claims that are gone."""
    wanted = {picture.path(directory) for picture in made}
    return [path for path in sorted(directory.glob("*.svg")) if path not in wanted]


# --- drawing ----------------------------------------------------------------------------------------------------------


def canvas(width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes, without a window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def log_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5 of each decade, written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_locator(NullLocator())


def colours(names: Sequence[str]) -> dict[str, str]:
    """Ours is always the same colour; the others follow."""
    others = iter(OTHER_COLOURS * (1 + len(names) // len(OTHER_COLOURS)))
    return {name: FIRST_COLOUR if name.startswith("Quire") else next(others) for name in names}


def draw_claims(table: list[dict[str, Any]]) -> Any:
    """Horizontal bars on a log scale: the median, a dot per pair, and the bar to reach as a stroke."""
    figure, axes = canvas(9, 1.2 + ROW_INCHES * len(table))
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    lowest = min(min(*claim["ratios"], claim["bar"], 1.0) for claim in table)
    highest = max(max(*claim["ratios"], claim["bar"]) for claim in table)
    axes.set_xlim(lowest / 1.3, highest * 2)
    for row, claim in enumerate(table):
        colour = FIRST_COLOUR if claim["holds"] else MISSED_COLOUR
        axes.barh(
            row, claim["ratio"] - lowest / 1.3, left=lowest / 1.3, height=0.34, color=colour, alpha=0.45
        )
        axes.plot(
            claim["ratios"], [row] * len(claim["ratios"]), "o", ms=3.5, color=colour, mec=PAPER, mew=0.4
        )
        axes.plot([claim["bar"]] * 2, [row - 0.2, row + 0.24], color=INK, lw=2)
        axes.text(lowest / 1.25, row - 0.22, f"{claim['claim']}: {claim['text']}", va="bottom", fontsize=8)
        end = max(*claim["ratios"], claim["ratio"], claim["bar"])
        verdict = "" if claim["holds"] else "  MISSED"
        axes.text(end * 1.07, row, f"{claim['ratio']:.2f}{verdict}", va="center", fontsize=9, color=colour)
    axes.set_ylim(len(table) - 0.4, -0.8)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("ratio, above 1 in our favour (bar: median; dots: pairs; stroke: the bar to reach)")
    return figure


def draw_pairs(points: list[dict[str, Any]]) -> Any:
    """Does the load of the machine decide? One point per pair."""
    figure, axes = canvas(9, 3.6)
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    for good, colour in ((True, FIRST_COLOUR), (False, MISSED_COLOUR)):
        some = [point for point in points if (point["over"] >= 1) == good]
        axes.plot(
            [point["load"] for point in some],
            [point["over"] for point in some],
            "o",
            ms=4.5,
            color=colour,
            alpha=0.6,
        )
    axes.axhline(1, color=INK, lw=1)
    axes.axhline(0.7, color=INK, lw=1, ls=":")
    axes.set_xlabel("load average before the pair")
    axes.set_ylabel("ratio over the bar")
    axes.set_title("every pair of every claim (dotted: no pair may be below 0.7)")
    return figure


def draw_timeline(data: dict[str, Any]) -> Any:
    """Throughput over time, one line per side."""
    figure, axes = canvas(9, 3.6)
    for name, colour in colours(list(data["series"])).items():
        points = [
            (second, value)
            for second, value in zip(data["seconds"], data["series"][name], strict=False)
            if value is not None
        ]
        axes.plot(
            [second for second, _ in points], [value for _, value in points], label=name, color=colour, lw=1.6
        )
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    axes.set_xlabel("seconds")
    axes.set_ylabel(data["unit"])
    axes.set_title(data["title"])
    axes.legend(loc="best")
    return figure


def draw_growth(data: dict[str, Any]) -> Any:
    """A figure over something that grows by decades, one line per side."""
    figure, axes = canvas(9, 3.6)
    axes.set_xscale("log")
    log_ticks(axes.xaxis)
    for name, colour in colours(list(data["series"])).items():
        axes.plot(data["at"], data["series"][name], "o-", ms=4, label=name, color=colour, lw=1.6)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    axes.set_xlabel(data["of"])
    axes.set_ylabel(data["unit"])
    axes.set_title(data["title"])
    axes.legend(loc="best")
    return figure


def tail(percentile: float) -> float:
    """Where a percentile stands on a scale that gives each further nine the same room."""
    return -math.log10(1 - percentile / 100)


def draw_histogram(data: dict[str, Any]) -> Any:
    """The times by percentile: to the right the tail, upwards slower."""
    figure, axes = canvas(9, 4)
    axes.set_yscale("log")
    log_ticks(axes.yaxis)
    for name, colour in colours(list(data["series"])).items():
        sample = data["series"][name]
        inner = sample[:-1] or sample
        places = [tail(100 * rank / len(inner)) for rank in range(len(inner))]
        axes.plot(
            places, inner, label=f"{name} (longest {sample[-1]:,.0f} {data['unit']})", color=colour, lw=1.6
        )
    axes.set_xticks(
        [tail(percentile) for percentile in PERCENTILES], [f"{percentile:g} %" for percentile in PERCENTILES]
    )
    axes.set_xlim(0, tail(99.9))
    axes.set_xlabel("percentile")
    axes.set_ylabel(data["unit"])
    axes.set_title(data["title"])
    axes.legend(loc="upper left")
    return figure


DRAWERS = {"timeline": draw_timeline, "histogram": draw_histogram, "growth": draw_growth}
"""By the kind of a claim's plot."""
