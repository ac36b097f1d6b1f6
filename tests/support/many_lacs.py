"""One WRITE_LACS with its answer, for which the client that ships does not wait."""

from quire.client import shapes
from quire.core.answers import Answer
from quire.wire import native_bodies
from quire.wire.native import Kind


async def write_lacs(client, bookie, items, *, timeout_ms=10_000):
    """The answer of a bookie, and of what it refused (ledger id, answer)."""
    shape = shapes.lacs([native_bodies.encode_lac_item(*item) for item in items])
    frame, _ = await client._request(bookie, Kind.WRITE_LACS, shape, timeout_ms)
    if frame.answer is not Answer.OK:
        return frame.answer, []
    return Answer.OK, native_bodies.decode_refused_lacs(frame.body)
