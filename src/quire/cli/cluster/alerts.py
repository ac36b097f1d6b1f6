"""A cluster's alerts, from what its bookies report: lines for people, an exit code for scripts."""

from __future__ import annotations

from typing import Any, Final

STATES_MAX: Final = 100
"""Most states of one bookie that are shown."""
TEXT_MAX: Final = 1000


def conditions_of(says: dict[str, Any] | None, *, writable: bool = True) -> list[dict[str, str]]:
    """The states of a bookie that responds; whatever is not of the right form is left out.

    Args:
        says: its response to INFO. Java's bookies and older versions report no states there.
        writable: what it is registered as; one that is not, and does not say why, is in a state too.
    """
    states = (says or {}).get("conditions")
    found: list[dict[str, str]] = []
    for one in states[:STATES_MAX] if isinstance(states, list) else ():
        if isinstance(one, dict):
            found.append({key: _plain(one.get(key)) for key in ("kind", "what", "ends")})
    if not writable and not found:
        found.append(_unexplained(takes=(says or {}).get("writable") is True))
    return found


def _unexplained(*, takes: bool) -> dict[str, str]:
    """The state of a bookie registered as read-only that gives no reason; `takes`: it reports that it takes entries."""
    what = "the bookie is registered as read-only and reports no reason"
    ends = "read the bookie's log; most often the disk is full, or an operator made the bookie read-only"
    if takes:
        what = "the bookie accepts entries again and is still registered as read-only"
        ends = "the bookie registers by itself within seconds; check that the metadata store responds"
    return {"kind": "read-only", "what": what, "ends": ends}


def unregistered() -> list[dict[str, str]]:
    """The state of a bookie that has a cookie and no registration."""
    what = "the bookie is not registered: its process does not run, or it lost its registration"
    ends = "start the bookie; if its process runs, check that it reaches the metadata store, and it registers again by itself"
    return [{"kind": "down", "what": what, "ends": ends}]


def silent(answer: str) -> list[dict[str, str]]:
    """The state of a bookie that is registered and does not say how it is."""
    what = f"the bookie is registered, and the request for its state failed: {answer}"
    ends = "check that the bookie's process runs, and that this machine reaches its address with its security settings"
    return [{"kind": "silent", "what": what, "ends": ends}]


def lines_of(rows: list[dict[str, Any]]) -> list[str]:
    """What people read: two lines for each state."""
    lines: list[str] = []
    for row in rows:
        for one in row["conditions"]:
            lines.append(f"{row['id']}  {one['kind']}: {one['what']}")
            lines.append(f"    ends: {one['ends']}")
    return lines


def kinds_of(row: dict[str, Any]) -> str | None:
    """The states of a bookie, in a cell of a table."""
    return ", ".join(dict.fromkeys(one["kind"] for one in row["conditions"])) or None


def _plain(value: object) -> str:
    """A peer's text without what could move a terminal's cursor."""
    text = value if isinstance(value, str) else "?"
    return "".join(char if char.isprintable() else "?" for char in text[:TEXT_MAX])
