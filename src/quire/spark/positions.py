"""Where a stream is in each log: the offsets that Spark keeps in its checkpoint, as one fixed text.

    {"v": 1, "logs": {"orders": {"id": "<log id>", "offset": 123}}}

Spark compares texts, so the order of keys never varies: logs by name. A log that is not named begins at its earliest
record. Offsets are of the next record to read. Pure.

Source: docs/spark.md, "Streams"; Spark documentation: offsets are dicts that become JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from quire.spark.options import use_error

VERSION: Final = 1
_NAMES_MAX: Final = 5
"""So many logs a sentence names at most."""


class Position(NamedTuple):
    """A place in one log.

    Attributes:
        identity: the log's id; a log of the same name that was created later has another.
        offset: of the next record.
    """

    identity: str
    offset: int


AsOf: TypeAlias = tuple[tuple[str, Position], ...]
"""Where each log, or raw ledger, ends for one read, and which one of that name is meant; in the order of reading."""


def as_text(as_of: AsOf) -> str:
    """The value of the option `asOf`."""
    return json.dumps(to_json(dict(as_of)))


def sentence(as_of: AsOf) -> str:
    """The ends of a read for people: the first few logs."""
    texts = [f"{name} {position.offset}" for name, position in as_of]
    return ", ".join([*texts[:_NAMES_MAX], "…"] if len(texts) > _NAMES_MAX else texts)


def to_json(positions: Mapping[str, Position]) -> dict[str, Any]:
    """What Spark turns into the text."""
    return {
        "v": VERSION,
        "logs": {
            name: {"id": positions[name].identity, "offset": positions[name].offset}
            for name in sorted(positions)
        },
    }


def from_json(value: Any) -> dict[str, Position]:
    """What Spark hands back, from the checkpoint perhaps.

    Raises:
        SparkUseError: it is not ours, or of a later version.
    """
    try:
        if value["v"] == VERSION:
            return {
                str(name): Position(str(each["id"]), int(each["offset"]))
                for name, each in value["logs"].items()
            }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise use_error(
            f"the checkpoint's offsets are not of this source: {value!r}. Use a new checkpoint."
        ) from error
    raise use_error(
        f"the checkpoint's offsets have version {value['v']}, this program reads {VERSION}: use a newer one."
    )
