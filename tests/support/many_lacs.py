"""WRITE_LACS: its body, and one with its answer, for which the client that ships does not wait."""

from quire.wire import native_bodies
from quire.wire.requests import WriteLacs


def encode_lacs(items):
    """The body of these `LacItem`s."""
    return native_bodies.join_lacs([native_bodies.encode_lac_item(*item) for item in items])


async def write_lacs(client, bookie, items, *, timeout_ms=10_000):
    """The answer of a bookie, and of what it refused (ledger id, answer)."""
    request = WriteLacs([native_bodies.encode_lac_item(*item) for item in items])
    return await client._request(bookie, request, timeout_ms)
