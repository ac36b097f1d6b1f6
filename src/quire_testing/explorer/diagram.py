"""A counterexample as a sequence diagram: one lane an actor, time downwards, late messages slanted.

A message is drawn from the step that sent it to the step that took it; one that was not taken ends in a cross.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from quire_testing.explorer.invariants import Violation
from quire_testing.explorer.story import lanes

LANE, ROW, TOP, LEFT = 190, 30, 64, 110
SENT = re.compile(r"^-> ((?:(?:b\d+|writer|recoverer(?: \d+)?)(?: |$))+)(.*)$")
TAKEN = re.compile(r"^(?:takes (?P<request>.*) from .*|hears (?P<reply>.*) from (?:b\d+|store))$")
NAME = re.compile(r"b\d+|writer|recoverer(?: \d+)?")

STYLE = """
svg { font: 12px system-ui, sans-serif; }
.lane { stroke: #b8c0cc; stroke-dasharray: 3 4; }
.head { font-weight: 600; text-anchor: middle; fill: #1c2733; }
.arrow { stroke: #2463a8; stroke-width: 1.4; fill: none; marker-end: url(#tip); }
.lost { stroke: #9aa4b1; stroke-dasharray: 4 3; }
.step { fill: #f4f6f9; stroke: #c6ceda; }
.text { fill: #1c2733; text-anchor: middle; }
.note { fill: #47535f; font-size: 11px; }
.bad { fill: #a3211b; font-weight: 600; }
"""


ARROW_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#2463a8"/></marker></defs>'
)


class Arrow(NamedTuple):
    """One message: from which lane and row to which, and its text. `row` None: it was not taken."""

    source: str
    sent: int
    target: str
    row: int | None
    text: str


def arrows(path: Sequence[tuple[Any, Any]]) -> list[Arrow]:
    """The messages of a path."""
    waiting: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    found: list[Arrow] = []
    for row, (label, _) in enumerate(path[1:]):
        taken = TAKEN.match(label.command)
        if taken and label.other:
            text = taken["request"] or taken["reply"]
            queue = waiting.get((label.other, label.actor, text))
            found.append(Arrow(label.other, queue.pop(0) if queue else row, label.actor, row, text))
        for line in label.said:
            sent = SENT.match(line)
            if sent:
                for name in NAME.findall(sent[1]):
                    waiting[label.actor, name, _without_payload(sent[2])].append(row)
    for (source, target, text), rows in waiting.items():
        found += [Arrow(source, row, target, None, text) for row in rows]
    return found


def _without_payload(text: str) -> str:
    return text.strip()


def svg(path: Sequence[tuple[Any, Any]], violation: Violation | None) -> str:
    """The diagram."""
    actors = lanes(path)
    x = {actor: LEFT + LANE * index for index, actor in enumerate(actors)}
    height = TOP + ROW * (len(path) + 1)
    width = LEFT + LANE * max(1, len(actors))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        ARROW_TIP,
    ]
    for actor in actors:
        parts.append(f'<text class="head" x="{x[actor]}" y="{TOP - 34}">{escape(actor)}</text>')
        parts.append(
            f'<line class="lane" x1="{x[actor]}" y1="{TOP - 24}" x2="{x[actor]}" y2="{height - ROW}"/>'
        )
    parts += [_arrow(arrow, x) for arrow in arrows(path) if arrow.source in x and arrow.target in x]
    for row, (label, _) in enumerate(path[1:]):
        parts.append(_step(label, x[label.actor], TOP + ROW * row))
    if violation is not None:
        text = escape(f"{violation.invariant}: {violation.text}")
        parts.append(f'<text class="bad" x="{LEFT - 90}" y="{height - ROW // 2}">{text}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _arrow(arrow: Arrow, x: dict[str, int]) -> str:
    y1 = TOP + ROW * arrow.sent
    if arrow.row is None:
        middle = (x[arrow.source] + x[arrow.target]) // 2
        return (
            f'<path class="lost" fill="none" d="M{x[arrow.source]} {y1} L{middle} {y1 + ROW // 2}"/>'
            f'<text class="note" x="{middle}" y="{y1 + ROW // 2 + 4}">&#215;</text>'
        )
    y2 = TOP + ROW * arrow.row
    title = f"<title>{escape(arrow.text)}</title>"
    return f'<path class="arrow" d="M{x[arrow.source]} {y1} L{x[arrow.target]} {y2}">{title}</path>'


def _step(label: Any, x: int, y: int) -> str:
    taken = TAKEN.match(label.command)
    short = (
        label.command if taken is None else f"{label.command.split()[0]} {taken['request'] or taken['reply']}"
    )
    short = short if len(short) <= 32 else short[:31] + "…"
    title = escape("\n".join([label.command, *label.said]))
    half = 88
    return (
        f'<g><title>{title}</title><rect class="step" x="{x - half}" y="{y - 10}" width="{2 * half}" height="20" rx="4"/>'
        f'<text class="text" x="{x}" y="{y + 4}">{escape(short)}</text></g>'
    )


def page(
    title: str,
    path: Sequence[tuple[Any, Any]],
    violation: Violation | None,
    rows: Sequence[tuple[str, str]],
    text: str,
) -> str:
    """The diagram, the state that breaks the invariant, and the transcript, as one HTML page without scripts."""
    table = "".join(f"<tr><th>{escape(part)}</th><td>{escape(what)}</td></tr>" for part, what in rows)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<style>body { font: 14px system-ui, sans-serif; margin: 2em; color: #1c2733 } th { text-align: left; "
        "padding-right: 1.5em } pre { background: #f4f6f9; padding: 1em; overflow-x: auto }</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{svg(path, violation)}\n<h2>The last state</h2>\n<table>{table}</table>\n"
        f"<h2>Transcript</h2>\n<pre>{escape(text)}</pre></body></html>\n"
    )
