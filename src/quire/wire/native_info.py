"""The bodies of INFO: JSON objects, both ways; what they say is the bookie's business.

Source: `docs/formats/native-protocol.md`, INFO.
"""

from __future__ import annotations

import json
from typing import Any

from quire.core.errors import MalformedFrameError
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.wire.entry import Buffer


def encode_info_question(orphans_after: int) -> bytes:
    """The body of an INFO of a bookie that asks for ledgers without a record, those above an id."""
    return encode_info({"orphans_after": orphans_after})


def decode_info_question(body: Buffer) -> int | None:
    """Above which id an INFO of a bookie asks for ledgers without a record; None: it asks for what there is to say.

    Raises:
        MalformedFrameError: it is neither empty nor such a question.
    """
    if not len(body):
        return None
    after = decode_info(body).get("orphans_after")
    if not isinstance(after, int) or not NO_ENTRY <= after <= ID_MAX:
        msg = f"an INFO asks for ledgers after {after!r}"
        raise MalformedFrameError(msg)
    return after


def encode_info(info: dict[str, Any]) -> bytes:
    """The body of a response to INFO."""
    return json.dumps(info, separators=(",", ":"), sort_keys=True).encode()


def decode_info(body: Buffer) -> dict[str, Any]:
    """The object of a response to INFO.

    Raises:
        MalformedFrameError: it is no JSON object.
    """
    try:
        info = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        msg = "the body of INFO is not JSON"
        raise MalformedFrameError(msg) from error
    if not isinstance(info, dict):
        msg = "the body of INFO is not an object"
        raise MalformedFrameError(msg)
    return info
