"""Every probe that was sent to a Java bookie, sent to ours: the same bytes come back, except where we mean to differ."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from quire.wire import v2, v3
from support.small_cluster import small_cluster

PROBES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "probes.json").read_text())["probes"]
ANSWER_SECONDS = 20

DIFFERENT = {
    "v3 add the same entry again": "the last body counts here, as with two of the three storages of Java",
    "v3 add with a gap": "the last body counts; READ_LAC shows the entry that was added last, which has the LAC",
    "v3 add: entryId in the request 7": "ids that differ inside and outside are refused",
    "v3 add: ledgerId in the request differs": "ids that differ inside and outside are refused",
    "v3 add: body of 16 bytes": "an add that was refused does not make its ledger known",
    "v3 add: body of 24 bytes": "an entry without a length field can be read by nobody",
    "v3 add: empty master key": "a key has 20 bytes",
    "v3 add: negative entry ids": "negative ids are refused, and so always answered",
    "v3 negative ledger id": "negative ids are refused, as two of the three storages of Java do",
    "v3 explicit LAC: WRITE_LAC": "a LAC only rises",
    "v3 GET_BOOKIE_INFO": "another disk",
    "v3 READ_ENTRY without a readRequest": "it is not a read of ledger 0",
    "v3 ADD_ENTRY without an addRequest": "the answer brings no ids that nobody named",
    "v3 long poll woken by": "the time of the wake differs, and the add may be answered first",
    "v2 batch read: starts in the gap (5), beyond the end (9), at -1": "-1 is the last entry, and nothing after it",
}
"""Probes whose answers differ, by the start of their name, with the reason. They are sent all the same."""

BELOW_OUR_LIMIT = "frame length 5242881 declared"
"""Not sent: with Pulsar's limit, which is ours, that frame may still come. `test_frames_too_long` has one above it."""


def exchanges(probe: dict[str, Any]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for frame in probe["frames"]:
        if frame.get("dir") == ">":
            found.append((frame, []))
        else:
            found[-1][1].append(frame)
    return found


def seen(frame: bytes) -> Any:
    if frame[4] == v3.FIRST_BYTE:
        message = v3.decode_response(frame)
        return str(message)
    return v2.decode_answer(frame)


async def replay(probe: dict[str, Any], port: int) -> list[tuple[Any, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    differences = []
    try:
        for request, answers in exchanges(probe):
            if "hex" not in request:
                continue
            writer.write(bytes.fromhex(request["hex"]))
            for answer in answers:
                got: Any
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        head = await reader.readexactly(4)
                        frame = head + await reader.readexactly(int.from_bytes(head, "big"))
                    got = seen(frame)
                except asyncio.IncompleteReadError:
                    got = "closed"
                except TimeoutError:
                    got = "no answer"
                if "event" in answer:
                    wanted: Any = "closed"
                else:
                    wanted = seen(bytes.fromhex(answer["hex"]))
                if got != wanted:
                    differences.append((got, wanted))
    finally:
        writer.close()
    return differences


def usable(probe: dict[str, Any]) -> bool:
    """Whether a plain bookie can answer it, and the frames were recorded whole."""
    if any(word in probe["bookie"] for word in ("read-only", "SASL", "DbLedger", "Interleaved")):
        return False
    if probe["name"].startswith(BELOW_OUR_LIMIT):
        return False
    return not any((frame.get("decoded") or {}).get("large") for frame in probe["frames"])


def ledgers_of(probes: list[dict[str, Any]]) -> set[int]:
    """The ledgers that requests name: a bookie takes nothing of one without a record."""
    named = json.dumps([probe["frames"] for probe in probes])
    return {int(found) for found in re.findall(r'"ledgerI[dD]": "?(\d+)', named)}


async def test_all_probes(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=1, records=ledgers_of(PROBES)) as cluster:
        port = next(iter(cluster.servers.values())).address[1]
        for probe in PROBES:
            if usable(probe):
                found = await replay(probe, port)
                reason = next(
                    (why for name, why in DIFFERENT.items() if probe["name"].startswith(name)), None
                )
                assert not found or reason, (probe["name"], found)
                assert all(got != "no answer" for got, _ in found), probe["name"]
