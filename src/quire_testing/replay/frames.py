"""Frames as the explorer names them: what a request asks and what a response says, read from the bytes of the wire."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY
from quire.core.ledger.terms import NO_TERM
from quire.wire import native, native_bodies
from quire.wire.bundles import decode_parts, open_bundle
from quire.wire.native import Flag, Kind
from quire.wire.native_bodies import LacItem, ReadBody
from quire.wire.run import RunView
from quire_testing.explorer.messages import Reply, Request, reply_text, request_text

LISTS = frozenset({"known", "info", "list_entries"})
"""What a list of a bookie's entries consists of: whether key and token fit, the limbo, the entries."""


class Sent(NamedTuple):
    """A request on its way: its frame, its number, and what it asks."""

    frame: bytes
    number: int
    request: Request

    @property
    def text(self) -> str:
        """As transcripts write it, by entries."""
        return _text_of(self.request)


class Said(NamedTuple):
    """A response on its way, with the request that it answers."""

    frame: bytes
    number: int
    reply: Reply

    @property
    def text(self) -> str:
        """As transcripts write it, by entries."""
        (what, *rows), _, payload = self.reply
        if what != "bundle" or payload is None:
            return plain(reply_text(self.reply))
        answered = zip(payload, rows, strict=True)
        return ", ".join(f"{one.name} to {_text_of(row)}" for one, row in answered if one is not None)


def request_of(frame: bytes) -> Sent:
    """What a client's frame asks. Slots are not on the wire: they are 0."""
    asked = native.decode_request(memoryview(frame))
    if asked.term or asked.kind is Kind.WRITE_LACS or _names_origin(asked):
        return Sent(frame, asked.number, _request_of_stream(asked))
    request: Request
    if asked.kind is Kind.ADD:
        run = RunView.parse(asked.body)
        if asked.flags & Flag.LOW_PRIORITY:
            bits = sum(1 << entry_id for entry_id in run.ids())
            request = ("copy", 0, run.first, run.last, bits, (), asked.lac)
        elif asked.flags & Flag.RECOVERY:
            request = ("put", 0, 0, run.first, run.last, run.period, run.stripes, asked.lac)
        else:
            lacs = asked.lac if asked.lafr == NO_ENTRY else (asked.lac, asked.lafr)
            request = ("add", 0, 0, run.first, run.last, lacs)
    elif asked.kind is Kind.READ_LAC:
        request = ("fence", 0) if asked.flags & Flag.FENCE else ("known",)
    elif asked.kind is Kind.READ:
        first, last, *_ = ReadBody._make(native_bodies.decode_body(Kind.READ, asked.body))
        request = ("read" if asked.flags & Flag.RECOVERY else "look", 0, first, last)
        request = (*request, bool(asked.flags & Flag.FENCE))
    elif asked.kind is Kind.WRITE_LAC:
        request = ("lac", asked.lac)
    elif asked.kind is Kind.ADD_BUNDLE:
        request = ("bundle", *_rows_of(frame))
    else:
        request = (asked.kind.name.lower(),)
    return Sent(frame, asked.number, request)


def _rows_of(frame: bytes) -> Iterator[Request]:
    """What each row of a bundle asks: an add that names its ledger, as the other requests of a replay need not."""
    rows, at = open_bundle(frame)
    for ledger_id, _, _, lac, size, _ in rows:
        run = RunView.parse(memoryview(frame)[at : at + size])
        yield "row", ledger_id, ("add", 0, 0, run.first, run.last, lac)
        at += size


def _text_of(request: Request) -> str:
    match request:
        case ("bundle", *rows):
            return f"bundle of {', '.join(map(_text_of, rows))}"
        case ("row", ledger_id, add):
            return f"ledger {ledger_id} {_text_of(add)}"
    return plain(request_text(request))


def _names_origin(asked: native.Request) -> bool:
    """Whether it reads entries of a stream."""
    if asked.kind is not Kind.READ:
        return False
    read = ReadBody._make(native_bodies.decode_body(Kind.READ, asked.body))
    return read.origin_term != native_bodies.ANY_TERM


def _request_of_stream(asked: native.Request) -> Request:
    """What a client of a stream asks: with its term, and with the origin term of entries."""
    fences = bool(asked.flags & Flag.FENCE)
    if asked.kind is Kind.ADD:
        run = RunView.parse(asked.body)
        if asked.flags & Flag.LOW_PRIORITY:
            bits = sum(1 << entry_id for entry_id in run.ids())
            return ("copy", 0, run.first, run.last, bits, (), run.origin_term, asked.term)
        if asked.flags & Flag.RECOVERY:
            origins = (run.origin_term,) * (run.last + 1 - run.first)
            rest = (run.period, run.stripes, asked.lac)
            return ("put", 0, 0, run.first, run.last, *rest, origins, asked.term)
        return ("add", 0, 0, run.first, run.last, asked.lac, asked.term)
    if asked.kind is Kind.TRUNCATE:
        first, *_ = native_bodies.decode_body(Kind.TRUNCATE, asked.body)
        return ("truncate", 0, 0, first, False, asked.lac, asked.term)
    if asked.kind is Kind.READ_LAC:
        return ("fence", 0, asked.term)
    if asked.kind is Kind.READ:
        first, last, _, origin = ReadBody._make(native_bodies.decode_body(Kind.READ, asked.body))
        origin = NO_TERM if origin == native_bodies.BY_ID else origin
        recovers = bool(asked.flags & Flag.RECOVERY)
        return ("read" if recovers else "look", 0, first, last, fences, origin, asked.term)
    if asked.kind is Kind.WRITE_LACS:
        (item,) = (LacItem(*fields) for fields in native_bodies.decode_lacs(asked.body))
        return ("lac", item.lac, item.term)
    return (asked.kind.name.lower(),)


def answer_of(frame: bytes, asked: Sent) -> Said:
    """What a bookie's frame says; of a bundle the answer to each row, None where another frame has it."""
    said = native.decode_answer(memoryview(frame))
    payload: object = None
    if asked.request[0] == "fence" and said.answer is Answer.OK:
        _, _, _, lafr = native_bodies.decode_lac_body(said.body)
        payload = said.lac if lafr == NO_ENTRY else (said.lac, lafr)
    elif asked.request[0] in ("read", "look") and said.answer is Answer.OK:
        of_stream = len(asked.request) > 5
        origin = asked.request[5] or native_bodies.BY_ID if of_stream else native_bodies.ANY_TERM
        entries = native_bodies.decode_entries(said.body, origin_term=origin)
        ids = tuple(entry_id for run in entries.runs for entry_id in run.ids())
        payload = (ids, entries.conclusive_through, tuple(entries.unknown))
        if origin == native_bodies.BY_ID:
            payload = (*payload, tuple(run.origin_term for run in entries.runs for _ in run.ids()))
    elif asked.request[0] == "bundle" and said.answer is Answer.OK:
        rows: list[Answer | None] = [None] * (len(asked.request) - 1)
        for first, count, answer, _ in decode_parts(said.body, len(rows)):
            rows[first : first + count] = [answer] * count
        payload = tuple(rows)
    return Said(frame, asked.number, (asked.request, said.answer, payload))


def as_one(one: Sent, other: Sent) -> Sent | None:
    """A truncation with its no-op, which are two frames of one connection and one request of the explorer; None: they are not.

    What is put in the sender's own term is its no-op: everything that is recovered is of an earlier one.
    """
    truncates, puts = (one, other) if one.request[0] == "truncate" else (other, one)
    if (truncates.request[0], puts.request[0]) != ("truncate", "put") or truncates.request[4]:
        return None
    *_, first, _, _, term = truncates.request
    _, _, _, entry, _, _, _, lac, origins, own = puts.request
    if (entry, origins, own) != (first, (term,), term):
        return None
    return Sent(one.frame + other.frame, one.number, ("truncate", 0, 0, first, True, lac, term))


def answer_of_both(frames: Sequence[bytes], asked: Sent) -> Said:
    """What a bookie says to a truncation and its no-op: the first refusal, if one is refused."""
    said = [native.decode_answer(memoryview(frame)).answer for frame in frames]
    answer = next((each for each in said if each is not Answer.OK), Answer.OK)
    return Said(b"".join(frames), asked.number, (asked.request, answer, None))


_TRUNCATES = re.compile(r"(truncate \d+) lac=-?\d+")
_STRIPES = re.compile(r"recovery add (\d+)\.\.(\d+)(?: stripes \[([\d, ]*)\] of (\d+))?")


def plain(text: str) -> str:
    """A request or a response by the entries that it is about.

    A striped run on the wire names the stripes that it has entries of, the machine's effect all that its bookie stores. A
    truncation has no LAC there, the no-op behind it has.
    """
    return _TRUNCATES.sub(r"\1", _STRIPES.sub(_entries, text))


def _entries(found: re.Match[str]) -> str:
    first, last, stripes, period = found.groups()
    ids = [
        entry_id
        for entry_id in range(int(first), int(last) + 1)
        if period is None or str(entry_id % int(period)) in stripes.split(", ")
    ]
    return f"recovery add {ids}"


def number_of(frame: bytes) -> int:
    """Which request a response is to."""
    return native.decode_answer(memoryview(frame)).number
