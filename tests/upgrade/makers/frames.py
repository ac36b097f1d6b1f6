"""Every frame of the native protocol's version 1 as bytes, with what it says: run with the code of revision 9e5fe3a.

    python tests/upgrade/makers/frames.py FOLDER

`tools/golden_files.py` does so. Nothing here knows later code.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.ledger_metadata import DigestType
from quire.wire import native
from quire.wire.entry import EntryDigest, master_key
from quire.wire.native import Flag, Kind
from quire.wire.run import RunPlace, RunView, encode_run, ids_in

KEY = master_key(b"secret")
TOKEN = 0x0123456789ABCDEF
LEDGER = 0x1122334455
SINGLE_FLAGS = (Flag.RECOVERY, Flag.FENCE, Flag.HIGH_PRIORITY, Flag.PLACES)
RESERVED_FLAGS = (Flag.TRUNCATE, Flag.NO_OP, Flag.DEFERRED_SYNC, Flag.CRITICAL_EXTENSION, 1 << 8, 1 << 15)


def plain(value: Any) -> Any:
    """As JSON has it: bytes in hex, a run by its header and its entries."""
    if isinstance(value, RunView):
        names = ("ledger_id", "first", "last", "count", "period", "residues", "digest_type", "origin_term")
        entries = {str(number): bytes(entry).hex() for number, entry in value.entries()}
        return {**{name: getattr(value, name) for name in names}, "entries": entries}
    if isinstance(value, RunPlace):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def run_body(
    ledger: int,
    first: int,
    last: int,
    digest: DigestType,
    *,
    period: int = 1,
    residues: int = 1,
    password: bytes = b"secret",
) -> bytes:
    """A run with payloads of growing size, the first one empty."""
    seal = EntryDigest(digest, password)
    entries: list[bytes] = []
    sizes: list[int] = []
    for number in ids_in(first, last, period, residues):
        payload = b"entry %d of a golden run " % number * (number - first)
        head = seal.seal_one(ledger, number, number - 1, 7 * number, payload)
        entries += [head, payload]
        sizes.append(len(head) + len(payload))
    return encode_run(
        ledger, first, last, entries, sizes, digest_type=int(digest), period=period, residues=residues
    )


RUNS = [
    run_body(LEDGER, 0, 0, DigestType.CRC32C),
    run_body(LEDGER, 3, 6, DigestType.CRC32C),
    run_body(LEDGER, 7, 14, DigestType.CRC32, period=5, residues=0b10110),
    run_body(LEDGER, 20, 22, DigestType.HMAC),
    run_body(LEDGER, 30, 31, DigestType.DUMMY),
]
PLACES = [
    RunPlace("/data/b1/segments/0000000000000001.seg", 5120, 65640, 0xDEADBEEF),
    RunPlace("/données/b2/segments/00000000000000ff.seg", (1 << 40) + 8, 7_000_000, 1),
]
EXPLICIT_LAC = EntryDigest(DigestType.CRC32C, b"secret").lac_body(LEDGER, 17)
EXPLICIT_LAC_HMAC = EntryDigest(DigestType.HMAC, b"secret").lac_body(LEDGER, 18)


def hellos() -> list[dict[str, Any]]:
    """Client's first words and their answers."""
    said = [
        native.Hello("cluster-1", "b1.k7f3q"),
        native.Hello("", "", features=native.START_TLS),
        native.Hello("cluster-1", "b1.k7f3q", auth_scheme="sasl", auth=b"\0token"),
        native.Hello("kluster-é", "b1.k7f3q", version_min=1, version_max=9, features=1 << 63),
        native.Hello("cluster-1", "b1.k7f3q", version_min=2, version_max=3),
    ]
    answered = [
        native.HelloAnswer(1, Answer.OK, "b1.k7f3q", "cluster-1"),
        native.HelloAnswer(
            1, Answer.OK, "b1.k7f3q", "cluster-1", features=native.AUTHENTICATE | native.BESIDE
        ),
        native.HelloAnswer(1, Answer.OK, "", "", features=native.START_TLS),
        native.HelloAnswer(0, Answer.WRONG_BOOKIE, "b1.k7f3q", "cluster-1", "another bookie was meant"),
        native.HelloAnswer(0, Answer.UNAUTHORISED, "", "", "a password is asked for"),
        native.HelloAnswer(0, Answer.BAD_REQUEST, "b1.k7f3q", "cluster-1", "no version in common"),
    ]
    return [
        {"what": "hello", "hex": native.encode_hello(hello).hex(), "says": plain(hello)} for hello in said
    ] + [
        {"what": "hello_answer", "hex": native.encode_hello_answer(answer).hex(), "says": plain(answer)}
        for answer in answered
    ]


def bodies() -> dict[Kind, list[bytes]]:
    """Bodies of each kind of request."""
    return {
        Kind.ADD: RUNS,
        Kind.READ: [native.encode_read(0, 0, 1), native.encode_read(5, (1 << 63) - 1, (1 << 32) - 1)],
        Kind.READ_LAC: [b""],
        Kind.WRITE_LAC: [EXPLICIT_LAC, EXPLICIT_LAC_HMAC],
        Kind.LONG_POLL: [
            native.encode_long_poll(-1, 0, 0, 1, 0),
            native.encode_long_poll(9, 10, 99, 1 << 20, 1000),
        ],
        Kind.LIST_ENTRIES: [b""],
        Kind.INFO: [b""],
        Kind.CLEAR_LIMBO: [b""],
        Kind.AUTH: [b"", b"\x01\x02token"],
    }


def requests() -> list[dict[str, Any]]:
    """Each kind of request, without flags, with each flag, with all that old programs know; and those they refuse."""
    found: list[dict[str, Any]] = []
    number = 0

    def one(kind: Kind, body: bytes, flags: int, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return native.encode_request(kind, number, len(body), crc32c(body), flags=flags, **fields) + body

    full = {
        "ledger_id": LEDGER,
        "token": TOKEN,
        "key": KEY,
        "lac": 16,
        "lafr": 12,
        "term": 0,
        "deadline_ms": 30_000,
    }
    for kind, some in bodies().items():
        for body in some:
            frames = [one(kind, body, 0, ledger_id=LEDGER, digest_type=DigestType.CRC32C)]
            frames += [one(kind, body, flag, **full) for flag in SINGLE_FLAGS]
            frames.append(one(kind, body, native.KNOWN_FLAGS, **{**full, "term": 3, "digest_type": 2}))
            for frame in frames:
                says = plain(native.decode_request(memoryview(frame)))
                found.append({"what": "request", "hex": frame.hex(), "says": says})
    for flag in RESERVED_FLAGS:
        frame = one(Kind.ADD, RUNS[0], flag, **full)
        try:
            native.decode_request(memoryview(frame))
        except native.MalformedFrameError as error:
            found.append({"what": "refused_request", "hex": frame.hex(), "error": str(error)})
        else:
            raise AssertionError(f"flag {flag:#x} was taken")
    return found


def parts() -> list[dict[str, Any]]:
    """What stands in bodies, with the function that reads each and what it gives."""
    intervals = [(0, 9, 1, 1), (10, 10, 1, 1), (11, 40, 5, 0b01011)]
    info = {"bookie_id": "b1.k7f3q", "writable": True, "storage": {"segments": 3}, "damages": []}
    cases: list[tuple[str, bytes, dict[str, Any]]] = [
        ("decode_read", native.encode_read(5, 9, 1000), {}),
        ("decode_long_poll", native.encode_long_poll(4, 5, 9, 1000, 250), {}),
        ("decode_lac_body", b"".join(native.encode_lac_body(b"", b"")), {}),
        ("decode_lac_body", b"".join(native.encode_lac_body(EXPLICIT_LAC, RUNS[0][-60:])), {}),
        ("decode_intervals", native.encode_intervals([]), {}),
        ("decode_intervals", native.encode_intervals(intervals), {}),
        ("decode_info", native.encode_info(info), {}),
        ("decode_entries", native.encode_told(-1, []), {}),
        ("decode_entries", native.encode_told(9, [(0, 3), (7, 7)]), {}),
        ("decode_entries", native.encode_told(40, [(1, 2)]) + b"".join(native.encode_runs(RUNS)), {}),
        ("decode_entries", native.encode_told(40, []) + native.encode_places([]), {"placed": True}),
        (
            "decode_entries",
            native.encode_told(99, [(50, 60)])
            + native.encode_places(PLACES)
            + b"".join(native.encode_runs(RUNS[1:3])),
            {"placed": True},
        ),
    ]
    return [
        {
            "what": "part",
            "reader": reader,
            "options": options,
            "hex": body.hex(),
            "says": plain(getattr(native, reader)(memoryview(body), **options)),
        }
        for reader, body, options in cases
    ]


def answers() -> list[dict[str, Any]]:
    """Answers of each kind that has a body, and each answer code."""
    told = native.encode_told(22, [(15, 19)])
    runs = [bytes(part) for part in native.encode_runs(RUNS[:2])]
    explicit = [bytes(part) for part in native.encode_lac_body(EXPLICIT_LAC, RUNS[0][-60:])]
    common = {"ledger_id": LEDGER, "term": 2, "lac": 17, "durable_lsn": 0x100000007}
    cases: list[dict[str, Any]] = [
        {"kind": Kind.ADD, "answer": Answer.OK, **common},
        {"kind": Kind.ADD, "answer": Answer.OK, "flags": native.FOLLOWED, **common},
        {"kind": Kind.READ, "answer": Answer.OK, "body": [told], "runs": runs, **common},
        {
            "kind": Kind.READ,
            "answer": Answer.OK,
            "flags": native.PLACED,
            "body": [told, native.encode_places(PLACES)],
            "runs": runs,
            **common,
        },
        {"kind": Kind.READ_LAC, "answer": Answer.OK, "body": explicit, **common},
        {"kind": Kind.WRITE_LAC, "answer": Answer.OK, **common},
        {"kind": Kind.LONG_POLL, "answer": Answer.OK, "body": [told], "runs": runs, **common},
        {
            "kind": Kind.LIST_ENTRIES,
            "answer": Answer.OK,
            "body": [native.encode_intervals([(0, 9, 1, 1)])],
            **common,
        },
        {"kind": Kind.INFO, "answer": Answer.OK, "body": [native.encode_info({"pid": 1})]},
        {"kind": Kind.CLEAR_LIMBO, "answer": Answer.OK, **common},
        {"kind": Kind.AUTH, "answer": Answer.OK, "body": [b"challenge"]},
    ]
    cases += [{"kind": Kind.READ, "answer": answer, **common} for answer in Answer]
    cases += [{"kind": Kind.ADD, "answer": answer} for answer in Answer]
    found = []
    for number, case in enumerate(cases, 1):
        fields = {name: value for name, value in case.items() if name not in {"kind", "answer"}}
        frame = b"".join(
            bytes(part) for part in native.encode_answer(case["kind"], case["answer"], number, **fields)
        )
        says = plain(native.decode_answer(memoryview(frame)))
        covered = [part.hex() for part in case.get("body", ())]
        with_runs = [part.hex() for part in case.get("runs", ())]
        found.append({"what": "answer", "hex": frame.hex(), "says": says, "body": covered, "runs": with_runs})
    return found


if __name__ == "__main__":
    cases = [*hellos(), *requests(), *parts(), *answers()]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    packed = gzip.compress(f"[\n{lines}\n]\n".encode(), mtime=0)
    Path(sys.argv[1], "frames.json.gz").write_bytes(packed)
