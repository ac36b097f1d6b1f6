"""The tables of docs/formats/history.md as the code has them."""

from __future__ import annotations


def fields(must, may):
    named = [f"`{name}`" for name in must] + [f"`{name}`?" for name in may]
    return ", ".join(named) or "-"


def rows(kinds):
    """A row per kind: what its invocation (or the note) says, what its result says."""
    found = []
    for name, kind in kinds.items():
        asked = fields(kind.invoke, kind.invoke_may) if not kind.free or kind.invoke else "anything"
        columns = [f"`{name}`", kind.what, asked]
        if not kind.note:
            columns.append(fields(kind.ok, kind.ok_may))
        found.append("| " + " | ".join(columns) + " |")
    return found
