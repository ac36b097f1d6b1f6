"""For each command a command line that does something small; for one that is not listed here, one that is guessed."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.cli.local.local_cluster import LocalCluster
from support.commands import every_command

DOCUMENTED = {0, 1, 2, 3, 4, 5, 130}
SERVERS = {("up",), ("bookie",), ("autorecovery",)}
"""Ctrl-C is how they are ended: 0."""

LINES: dict[tuple[str, ...], str] = {
    ("up",): "--dir {tmp}/up --bookies 1",
    ("demo",): "--input {tmp}/missing --dir {tmp}/demo",
    ("bookie",): "--dir {tmp}/b --cluster sqlite:{tmp}/b.db --create --listen 127.0.0.1:0",
    ("bookie", "collect"): "--now",
    ("bookie", "compact"): "--now",
    ("check",): "--seconds 1",
    ("bench", "append"): "--seconds 0.1",
    ("bench", "latency"): "--seconds 0.1",
    ("context", "add"): "added sqlite:{tmp}/none.db",
    ("metadata", "format"): "--cluster sqlite:{tmp}/new.db",
    ("log", "create"): "new-{unique}",
    ("stream", "create"): "new-{unique}",
    ("ledger", "create"): "",
}


@dataclass(frozen=True)
class Place:
    """What command lines may name: a cluster, a log and a ledger in it, and a directory of the test's own."""

    uri: str
    log: str
    ledger: int
    tmp: Path


def line_for(words: tuple[str, ...], place: Place) -> list[str]:
    """A whole command line without the program's name."""
    own = place.tmp / "-".join(words)
    own.mkdir(exist_ok=True, parents=True)
    given = LINES.get(words)
    if given is None:
        given = " ".join(
            guess(param, place, own) for param in every_command()[words].params if param.required
        )
    return [*words, *shlex.split(given.format(tmp=own, unique=f"{os.getpid()}-{own.parent.name}"))]


def guess(param: Any, place: Place, own: Path) -> str:
    """A value for something that must be given."""
    name = str(param.name)
    if "ledger" in name:
        value = str(place.ledger)
    elif "dir" in name or "out" in name:
        value = f"{own}/new"
    elif "file" in name or "histor" in name:
        value = f"{own}/missing"
    elif param.type.name.partition(" ")[0] in {"int", "float"}:
        value = "1"
    else:
        value = place.log
    option = next((one for one in param.opts if one.startswith("--")), "")
    return f"{option} {value}" if option else value


def furnished(local: LocalCluster, tmp: Path) -> Place:
    """A log with keys, headers, tombstones and an empty value, and a closed ledger."""
    from quire import blocking

    with blocking.connect(local.uri) as client:
        log = client.log("orders")
        log.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        with log.open_writer() as writer:
            writer.append(b"text", key=b"key")
            writer.append(None, key=b"key")
            writer.append(b"")
            writer.append(b"\xff\xfe", key=b"\x00")
            writer.append("Grüße → 世界".encode())
        with client.create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"", digest="crc32c"
        ) as ledger:
            ledger.append_many([b"one", b"\xff two", "世界".encode()])
        return Place(local.uri, "orders", ledger.ledger_id, tmp)
