"""Ledgers written and read by Python and by Java alike, for what happens to them in between."""

from __future__ import annotations

from typing import Any

from support.java_peers import PATIENT_JAVA, JavaClient

LANGUAGES = ("python", "java")
DIGESTS = ("CRC32C", "CRC32", "MAC", "DUMMY")
SHAPES = ((3, 3, 2), (3, 2, 2), (2, 2, 1))
COUNT = 120
SIZE = 300
RAMP = bytes(range(256)) * 4


def payload(number: int, size: int = SIZE) -> bytes:
    """What `tools/java-client` writes as entry `number`, up to 768 bytes of it."""
    start = 31 * number % 256
    return RAMP[start : start + size]


class Ledgers:
    """What is done to them in one cluster.

    Args:
        client: ours.
        java: Java's.
        uri: the cluster, as Java is told of it.
    """

    def __init__(self, client: Any, java: JavaClient, uri: str) -> None:
        self._client, self._java, self._uri = client, java, uri

    async def write(self, language: str, number: int, *, close: bool = True) -> int:
        """A ledger of COUNT entries; its number says of which digest and shape; its id."""
        digest, (ensemble, write, ack) = DIGESTS[number % len(DIGESTS)], SHAPES[number % len(SHAPES)]
        if language == "python":
            ledger = await self._client.create_ledger(
                ensemble_size=ensemble,
                write_quorum=write,
                ack_quorum=ack,
                digest=digest.lower(),
                password=b"secret",
            )
            await ledger.append_many([payload(entry) for entry in range(COUNT)])
            await (ledger.close() if close else ledger.abandon())
            return int(ledger.ledger_id)
        options = ["--ensemble", ensemble, "--wq", write, "--aq", ack, *([] if close else ["--no-close"])]
        events = await self._java.run(
            self._uri, digest, "write", COUNT, SIZE, "--quiet", *options, *PATIENT_JAVA
        )
        assert events[-1]["event"] == "written", events
        return int(events[0]["ledger"])

    async def read(self, language: str, ledger_id: int, count: int = COUNT, digest: str = "CRC32C") -> None:
        """All entries of a closed ledger, each as it was written; `digest`: where the record does not say it."""
        if language == "python":
            reader = await self._client.open_ledger(ledger_id, password=b"secret", recover=False)
            assert reader.closed
            found = [bytes(entry.payload) async for entry in reader.read()]
            assert found == [payload(number) for number in range(count)]
            return
        events = await self._java.run(self._uri, digest, "read", ledger_id, *PATIENT_JAVA)
        entries = [event for event in events if event["event"] == "entry"]
        assert [entry["entry"] for entry in entries] == list(range(count)), events[-1]
        assert all(entry["pattern"] and entry["size"] == SIZE for entry in entries)
