"""Draws docs/pictures/overview.svg, the picture of README: a client, three bookies, the metadata store and Spark.

White paper of its own, so that it reads the same on a light and on a dark page.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PATH = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "overview.svg"
TEXT = "A client sends each entry to three bookies; the metadata store knows which; Spark reads and writes beside it"
WIDTH, HEIGHT = 900, 520
INK, FAINT, BLUE, GREEN = "#24292f", "#57606a", "#0072b2", "#00795a"

BOXES = (
    (30, 110, 200, 110, BLUE, ("Your program", "quire.blocking, asyncio,", "or the command line")),
    (350, 30, 200, 76, GREEN, ("bookie 1", "an entry: on disk, synced")),
    (350, 127, 200, 76, GREEN, ("bookie 2", "the same entry")),
    (350, 224, 200, 76, GREEN, ("bookie 3", "the same entry")),
    (670, 110, 200, 110, BLUE, ("Spark", "each log is a table", "and a stream")),
    (320, 340, 260, 70, FAINT, ("metadata store", "SQLite, ZooKeeper or etcd")),
)
"""Left, top, width, height, colour, lines; the first line is the name."""

ARROWS = (
    (230, 150, 344, 72, BLUE),
    (230, 165, 344, 165, BLUE),
    (230, 180, 344, 258, BLUE),
    (670, 150, 556, 72, BLUE),
    (670, 165, 556, 165, BLUE),
    (670, 180, 556, 258, BLUE),
    (130, 220, 314, 372, FAINT),
    (770, 220, 586, 372, FAINT),
    (450, 304, 450, 336, FAINT),
)
"""From, to, colour; both ends have a head: requests go there, responses come back."""

CAPTION = (
    "An entry goes to all three bookies. Each writes it to its journal and syncs;",
    "when two have done so, it is acknowledged.",
    "The metadata store knows which bookies hold what, and who writes. It sees no entry.",
)


def svg() -> str:
    """The picture; the same bytes each time."""
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            'role="img" font-family="Helvetica, Arial, sans-serif">'
        ),
        f"<title>{escape(TEXT)}</title>",
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10" fill="#ffffff" stroke="#c9ced6"/>',
        *(arrow(*each) for each in ARROWS),
        *(box(*each) for each in BOXES),
        *(
            f'<text x="{WIDTH // 2}" y="{446 + 24 * number}" font-size="15" fill="{INK}" text-anchor="middle">'
            f"{escape(line)}</text>"
            for number, line in enumerate(CAPTION)
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def box(left: int, top: int, width: int, height: int, colour: str, lines: tuple[str, ...]) -> str:
    """A box with its name and a few words."""
    first = top + height // 2 - 10 * (len(lines) - 1) + 5
    texts = [
        f'<text x="{left + width // 2}" y="{first + 21 * number}" text-anchor="middle" font-size="{14 if number else 17}" '
        f'font-weight="{400 if number else 700}" fill="{INK if number else colour}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    rect = (
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" fill="#f6f8fa" stroke="{colour}" '
        'stroke-width="2"/>'
    )
    return "\n".join([rect, *texts])


def arrow(x1: int, y1: int, x2: int, y2: int, colour: str) -> str:
    """A line with a head at both ends."""
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="2"/>'
    return "\n".join([line, head(x1, y1, x2, y2, colour), head(x2, y2, x1, y1, colour)])


def head(x1: int, y1: int, x2: int, y2: int, colour: str) -> str:
    """The head at the second end."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    along, across = (x2 - x1) / length, (y2 - y1) / length
    back_x, back_y = x2 - 10 * along, y2 - 10 * across
    points = (
        (x2, y2),
        (back_x - 5 * across, back_y + 5 * along),
        (back_x + 5 * across, back_y - 5 * along),
    )
    return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="{colour}"/>'


def stale() -> list[Path]:
    """The file, if it is not what would be drawn now."""
    return [] if PATH.exists() and PATH.read_text("utf-8") == svg() else [PATH]


def write_all() -> list[Path]:
    """Draw the file, if it changes."""
    changed = stale()
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(svg(), encoding="utf-8")
    return changed
