"""The tables of docs/formats/fields.md, from the layouts that the codecs declare."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from quire import metadata, storage, wire
from quire.wire.layout import Layout, Message, NamedValues, Table

ROOMS = (storage, wire, metadata)
PAGES = {
    "storage": "On the disk ([segment.md](segment.md))",
    "wire": "On the wire, and in values of the metadata store",
    "metadata": "In the metadata store ([metadata.md](metadata.md))",
}
HEAD = [
    "| field | at | written by | read by |",
    "| --- | --- | --- | --- |",
]


def declared() -> Iterator[tuple[str, str, Table]]:
    """(room, module, table) of every table that a module declares, in the order of its lines."""
    seen: set[int] = set()
    for room in ROOMS:
        below = f"{room.__name__}."
        for found in sorted(pkgutil.walk_packages(room.__path__, below), key=lambda found: found.name):
            if found.ispkg:
                continue
            module = importlib.import_module(found.name)
            for table in vars(module).values():
                # One that is imported is shown where it is made.
                if isinstance(table, Layout | Message | NamedValues) and id(table) not in seen:
                    if table.name not in Path(str(module.__file__)).read_text():
                        continue
                    seen.add(id(table))
                    yield (
                        below.removeprefix("quire.")[:-1],
                        found.name.removeprefix(below).replace(".", "/"),
                        table,
                    )


def rows_of(table: Table) -> list[str]:
    """A table of one layout."""
    lines = [f"**{table.name}**", "", *HEAD]
    for row in table.rows():
        lines.append(f"| {row.field} | {row.location} | {row.use.writer} | {row.use.reader} |")
    return [*lines, ""]


def fields() -> str:
    """All of them, by room and file."""
    lines: list[str] = []
    room = module = ""
    for of_room, of_module, table in declared():
        if of_room != room:
            room = of_room
            lines += [f"## {PAGES[room]}", ""]
        if of_module != module:
            module = of_module
            lines += [f"### `{room}/{module}.py`", ""]
        lines += rows_of(table)
    return "\n".join(lines)
