"""Inputs to begin with: what our client says to our bookie and hears from it, in each protocol, and the recorded frames."""

from __future__ import annotations

import json
from pathlib import Path

from quire.wire import bundles, native, native_bodies
from quire.wire.run import checksum
from support.hostile_worlds import (
    ACCESS,
    ENTRIES,
    GOOD,
    LEDGER,
    NATIVE,
    SEALED,
    V2,
    V3,
    StillBookie,
    StillClient,
    a_run,
)

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
_NAMES = {V2: "v2", V3: "v3", NATIVE: "native"}


def recorded(direction: str) -> dict[int, list[bytes]]:
    """Recorded V2 and V3 frames, to the bookie (">") or from it ("<")."""
    probes = json.loads((VECTORS / "probes.json").read_text())["probes"]
    captures = json.loads((VECTORS / "captures.json").read_text())
    found: dict[int, list[bytes]] = {V2: [], V3: []}
    for scenario in (*probes, *captures):
        for frame in scenario["frames"]:
            text = frame.get("hex", "")
            if frame.get("dir") == direction and len(text) >= 16 and set(text) <= set("0123456789abcdef"):
                data = bytes.fromhex(text)
                found[V3 if data[4] == 0x0A else V2].append(data)
    kind = "requests" if direction == ">" else "responses"
    for protocol in (V2, V3):
        cases = json.loads((VECTORS / f"{_NAMES[protocol]}_frames.json").read_text())[kind]
        found[protocol] += [bytes.fromhex(case["frame_hex"]) for case in cases]
    return {protocol: sorted(set(frames)) for protocol, frames in found.items()}


def conversation() -> tuple[dict[int, list[bytes]], dict[int, list[bytes]]]:
    """(what our client asks for, what our bookie answers), by protocol; a frame is one item."""
    asked: dict[int, list[bytes]] = {}
    answered: dict[int, list[bytes]] = {}
    client, bookie = StillClient(), StillBookie()
    for protocol in (NATIVE, V2, V3):
        asked[protocol], answered[protocol] = [], []
        client.hear(bytes([protocol, 0]))
        for _, line in client.lines:
            said = bytes(line.sent)
            if protocol == NATIVE:
                said = said[len(client.hello_sent) :] + truncate()
                heard = bookie.serve_pieces([bookie.hello, said])[bookie.greeting :]
            else:
                heard = bookie.serve_pieces([said])
            asked[protocol] += frames_of(said)
            answered[protocol] += frames_of(heard)
    asked[NATIVE].append(bundle())
    return asked, answered


def truncate() -> bytes:
    """A TRUNCATE, which clients send for streams whose terms only fence: these sessions have none."""
    body = native_bodies.encode_body(native_bodies.TruncateBody(5))
    kind = native.Kind.TRUNCATE
    return native.encode_request(kind, 99, len(body), checksum(body), ledger_id=LEDGER) + body


def bundle() -> bytes:
    """An ADD_BUNDLE, which clients send that write several ledgers: these sessions write one."""
    rows, bodies = [], []
    for ledger, first, last in ((ACCESS, ENTRIES, ENTRIES + 2), (GOOD, ENTRIES, ENTRIES), (ACCESS, 50, 51)):
        bodies.append(a_run(first, last, ledger))
        key = ACCESS.key  # no input has the other one's
        rows.append(
            bundles.ROW.pack(ledger.ledger_id, 0, key, first - 1, len(bodies[-1]), checksum(bodies[-1]))
        )
    return bundles.encode_bundle(98, rows, bodies)


def frames_of(stream: bytes) -> list[bytes]:
    """The frames of a stream."""
    frames, at = [], 0
    while at + 4 <= len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        frames.append(stream[at:end])
        at = end
    return frames


def beginnings(side: str) -> list[bytes]:
    """Inputs for "bookie" or "client"."""
    asked, answered = conversation()
    ours = asked if side == "bookie" else answered
    vectors = recorded(">" if side == "bookie" else "<")
    inputs = []
    for protocol in (NATIVE, V2, V3):
        frames = ours[protocol] + vectors.get(protocol, [])
        head = bytes([protocol | (SEALED if protocol == NATIVE else 0), 0])
        inputs += [head + frame for frame in frames if len(frame) <= 4096]
        inputs.append(head + b"".join(ours[protocol]))
    return inputs
