"""Golden files of revision 9e5fe3a: where they lie, and how a bookie's directory is told. Old and new code run this."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any

from quire.wire.run import RunView

FOLDER = Path(__file__).resolve().parents[1] / "vectors" / "golden_9e5fe3a"
BEYOND = 3
"""So many ids behind a ledger's last entry are asked for too."""
CLUSTER = "00000000-0000-4000-8000-9e5fe3a00001"
BOOKIE = "golden"
MANY_BYTES = 1 << 20


def digest(entry: Any) -> str:
    """What stands for an entry's bytes, its header included."""
    return hashlib.sha256(bytes(entry)).hexdigest()[:16]


def told(storage: Any, ledger_id: int, through: int) -> dict[int, str | None]:
    """What a bookie's disk says of entries 0..through: a digest, None for unknown; what is missing is not there."""
    found: dict[int, str | None] = {}
    at = 0
    while at <= through:
        held = storage.read(ledger_id, at, through, MANY_BYTES)
        for low, high in (
            *held.unknown,
            *getattr(held, "damaged", ()),
        ):  # later versions tell one from the other
            found.update(dict.fromkeys(range(max(low, at), min(high, through) + 1)))
        for body in held.runs:
            for entry_id, entry in RunView.parse(body).entries():
                if at <= entry_id <= through:
                    found[entry_id] = digest(entry)
        if held.vouched_through < at:
            found.update({number: found.get(number) for number in range(at, through + 1)})
            break
        at = held.vouched_through + 1
    if storage.suspects(ledger_id):
        found.update({number: found.get(number) for number in range(through + 1)})
    return dict(sorted(found.items()))


def facts_told(facts: Any) -> dict[str, Any] | None:
    """The facts of a ledger that every version has."""
    if facts is None:
        return None
    return {
        "key": facts.key.hex(),
        "token": facts.token,
        "digest_type": int(facts.digest_type),
        "fenced": facts.fenced,
        "limbo": facts.limbo,
        "term": facts.term,
        "lac": facts.lac,
        "explicit_lac": facts.explicit_lac.hex(),
        "deleted_until_ms": facts.deleted_until_ms,
    }


def pack(folder: Path, archive: Path) -> None:
    """Put a folder into an archive that depends on its files' names and bytes alone."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(folder.rglob("*")):
            if path.name != "LOCK":  # the old code locked a file
                packed.add(path, str(path.relative_to(folder)), recursive=False, filter=plain)


def unpack(archive: Path, folder: Path) -> Path:
    """The files of an archive, in a folder of their own."""
    folder.mkdir(parents=True)
    with tarfile.open(archive) as packed:
        for member in packed:
            target = folder / member.name
            if member.isdir():
                target.mkdir()
            else:
                source = packed.extractfile(member)
                assert source is not None
                target.write_bytes(source.read())
    return folder
