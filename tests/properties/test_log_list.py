"""The list of a log: any sequence of changes keeps it possible, small, and true to a plain list of ledgers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import CorruptMetadataError, MisuseError, PastEndError
from quire.core.ids import LedgerId
from quire.core.log.effects import ReadHead, WriteHead
from quire.core.log.list import (
    FAN_OUT_MAX,
    Adoption,
    Intent,
    IntentKind,
    ItemLocation,
    ItemState,
    Leader,
    LedgerSummary,
    LogHead,
    LogItem,
    LogPage,
    LogSettings,
    PageLayout,
    PageRef,
    SinkPosition,
    paged,
)
from quire.core.log.trimming import (
    TrimDeleteLedger,
    TrimDeletePage,
    TrimMachine,
    TrimReadPage,
)
from quire.wire.log_records import (
    PAGE_BYTES_MAX,
    decode_head,
    decode_name,
    decode_page,
    encode_head,
    encode_name,
    encode_page,
    page_name,
)
from quire.wire.proto import quire_log_pb2 as pb

LOG_ID = bytes(range(16))
NAT = st.integers(0, 2**63 - 1)
TIME = st.none() | st.integers(-(2**63), 2**63 - 1)
UNKNOWN = st.sampled_from([b"", b"\xfa\x3f\x03new", b"\x80\x3f\x05"])
"""Fields 1023 and 1008, which no program of today knows."""

ITEM = st.builds(
    LogItem,
    NAT.map(LedgerId),
    st.integers(0, 2**64 - 1),
    st.none() | NAT,
    st.none() | NAT,
    NAT,
    NAT,
    TIME,
    TIME,
    st.sampled_from(ItemState),
    st.sampled_from(ItemLocation),
    st.integers(0, 4),
    st.sampled_from(["batch1", ""]),
    st.integers(0, 9),
    UNKNOWN,
)
REF = st.builds(
    PageRef, st.text("0123456789abcdef"), st.integers(0, 3), NAT, NAT, NAT, NAT, NAT, TIME, TIME, UNKNOWN
)
TEXT = st.text(max_size=5)
I64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def heads(draw: st.DrawFn) -> LogHead:
    """A possible list with every other field filled by chance."""
    head = LogHead(
        LOG_ID,
        draw(TEXT),
        LogSettings(3, 2, 1, 3, draw(UNKNOWN), draw(st.integers(0, 3))),
        draw(NAT),
        Leader(draw(NAT), draw(TEXT), draw(TEXT), draw(st.booleans()), draw(UNKNOWN)),
        adoptions=tuple(draw(st.lists(st.builds(Adoption, st.tuples(ITEM), TEXT, I64, UNKNOWN), max_size=2))),
        sink_positions=tuple(
            draw(st.lists(st.builds(SinkPosition, TEXT, I64, I64, TEXT, UNKNOWN), max_size=2))
        ),
        intents=tuple(
            draw(
                st.lists(
                    st.builds(
                        Intent,
                        st.sampled_from(IntentKind),
                        NAT,
                        NAT,
                        st.tuples(ITEM),
                        st.tuples(REF),
                        I64,
                        UNKNOWN,
                    ),
                    max_size=2,
                )
            )
        ),
        created_ms=draw(I64),
        positions_dropped=draw(NAT),
        positions_dropped_ms=draw(I64),
        unknown=draw(UNKNOWN),
    )
    for number in range(draw(st.integers(0, 6))):
        head = head.with_item(LogItem(LedgerId(number), unknown=draw(UNKNOWN)))
        head = head.with_completed(number, LedgerSummary(draw(st.integers(0, 9)), 5, draw(TIME), draw(TIME)))
    head, _ = paged(head, PageLayout(2, 2), page_name)
    return head


@settings(max_examples=150, deadline=None)
@given(heads())
def test_a_head_comes_back_as_it_was_with_what_later_versions_wrote(head: LogHead) -> None:
    record = encode_head(head)
    assert decode_head(record, LOG_ID) == head
    assert encode_head(decode_head(record, LOG_ID)) == record


@settings(max_examples=100, deadline=None)
@given(st.lists(ITEM, max_size=4), st.lists(REF, max_size=4), UNKNOWN)
def test_a_page_comes_back_as_it_was(items: list[LogItem], refs: list[PageRef], unknown: bytes) -> None:
    page = LogPage(LOG_ID, 1, tuple(items), tuple(refs), unknown)
    assert decode_page(encode_page(page), LOG_ID, page_name(page)) == page


def test_every_change_carries_over_what_it_does_not_own() -> None:
    """Every change of the head carries over all fields that it does not own, unknown ones included.

    Source: docs/decisions/017-leader-epoch.md.
    """
    message = pb.LogHead.FromString(encode_head(LogHead(LOG_ID, "orders")))
    message.MergeFromString(b"\xfa\x3f\x03new")
    message.leader.MergeFromString(b"\xfa\x3f\x03two")
    head = decode_head(message.SerializeToString(), LOG_ID)
    head = replace(
        head, sink_positions=(SinkPosition("q", 3),), adoptions=(Adoption((LogItem(LedgerId(9), count=1),)),)
    )
    changed = head.with_item(LogItem(LedgerId(1))).with_leader(Leader(5, "me"))
    changed = changed.with_completed(1, LedgerSummary(4)).with_item(LogItem(LedgerId(2)))
    changed = changed.with_truncation(4, 4, 0)
    again = pb.LogHead.FromString(encode_head(changed))
    assert b"\xfa\x3f\x03new" in again.SerializeToString()
    assert b"\xfa\x3f\x03two" in again.leader.SerializeToString()
    assert (changed.sink_positions, changed.adoptions) == (head.sink_positions, head.adoptions)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"\xff\xff", "cannot be read"),
        (pb.LogHead(format_version=2, log_id=LOG_ID).SerializeToString(), "format version 2"),
        (pb.LogHead(format_version=1, log_id=b"short").SerializeToString(), "log id of 5 bytes"),
        (pb.LogHead(format_version=1, log_id=bytes(16)).SerializeToString(), "belongs to log 0000"),
        (
            pb.LogHead(
                format_version=1, log_id=LOG_ID, items=[pb.LogItem(state=7, place=1)]
            ).SerializeToString(),
            "does not understand",
        ),
        (
            pb.LogHead(format_version=1, log_id=LOG_ID, intents=[pb.LogIntent(kind=9)]).SerializeToString(),
            "intent of kind 9",
        ),
        (
            pb.LogHead(
                format_version=1,
                log_id=LOG_ID,
                items=[pb.LogItem(state=1, place=1, ledger_id=n) for n in range(3)],
            ).SerializeToString(),
            "3 of its ledgers are open",
        ),
    ],
)
def test_a_head_that_cannot_be_is_named(record: bytes, text: str) -> None:
    with pytest.raises(CorruptMetadataError, match=text):
        decode_head(record, LOG_ID)


def test_names_and_pages_are_checked() -> None:
    assert decode_name(encode_name(LOG_ID), "orders") == LOG_ID
    with pytest.raises(CorruptMetadataError, match="name record of log 'orders'"):
        decode_name(b"\xff", "orders")
    page = LogPage(LOG_ID, 0, (LogItem(LedgerId(1)),))
    with pytest.raises(CorruptMetadataError, match="other bytes than its name"):
        decode_page(encode_page(page) + b"\x18\x01", LOG_ID, page_name(page))


def test_the_largest_page_fits() -> None:
    """Each page is at most 64 KiB, with ids, offsets and times as large as they can be.

    Source: docs/formats/log-list.md, "Pages".
    """
    big = 2**63 - 1
    item = LogItem(
        LedgerId(big),
        big,
        big,
        big,
        big,
        big,
        -big,
        -big,
        ItemState.CLOSED,
        ItemLocation.ARCHIVE,
        4,
        "batch1",
        2**31,
        archive=b"a" * 16,
    )
    assert len(encode_page(LogPage(LOG_ID, 0, (item,) * FAN_OUT_MAX))) <= PAGE_BYTES_MAX
    reference = PageRef("f" * 32, 9, big, big, big, big, big, -big, -big)
    assert len(encode_page(LogPage(LOG_ID, 1, (), (reference,) * FAN_OUT_MAX))) <= PAGE_BYTES_MAX


# --- a list against a plain one -------------------------------------------------------------------------------


class Store:
    """Heads and pages without a store; a truncation may stop anywhere."""

    def __init__(self, layout: PageLayout) -> None:
        self.layout = layout
        self.head = LogHead(LOG_ID, "orders")
        self.pages: dict[str, LogPage] = {}
        self.ledgers: dict[int, range] = {}
        self.end = 0

    def roll(self, records: int) -> None:
        ledger = LedgerId(len(self.ledgers) + 1000)
        head = self.head.with_item(LogItem(ledger)).with_completed(ledger, LedgerSummary(records))
        self.ledgers[ledger] = range(self.end, self.end + records)
        self.end += records
        self.head, pages = paged(head.checked(), self.layout, page_name)
        self.head.checked()
        self.pages |= {page_name(page): page for page in pages}

    def truncate(self, before: int, steps: int | None) -> None:
        machine = TrimMachine(before, end=self.end)
        machine.start()
        while machine.out and (steps is None or steps > 0):
            out, machine.out = machine.out, []
            for effect in out:
                machine.check()
                match effect:
                    case ReadHead():
                        machine.head_read(self.head, self.head.generation)
                    case WriteHead(head):
                        self.head = head
                        machine.head_written(head.generation)
                    case TrimReadPage(page):
                        machine.page_read(self.pages.get(page.name))
                    case TrimDeleteLedger(item):
                        self.ledgers[item.ledger_id] = range(0)
                        machine.ledger_deleted(item.ledger_id)
                    case TrimDeletePage(page):
                        self.pages.pop(page.name, None)
                        machine.page_deleted(page.name)
            if steps is not None:
                steps -= 1

    def items(self) -> list[LogItem]:
        found: list[LogItem] = []

        def walk(page: PageRef) -> None:
            if page.next_offset > self.head.start_offset:
                stored = self.pages[page.name]
                found.extend(stored.items)
                for child in stored.children:
                    walk(child)

        for page in self.head.pages:
            walk(page)
        return [*found, *self.head.items]


CHANGES = st.lists(
    st.tuples(st.just("roll"), st.integers(0, 9))
    | st.tuples(st.just("roll"), st.integers(0, 9))
    | st.tuples(st.just("truncate"), st.integers(0, 100))
    | st.tuples(st.just("crash"), st.integers(0, 100)),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(CHANGES, st.integers(2, 4), st.integers(2, 4))
def test_the_paged_list_holds_what_a_plain_one_would(
    changes: list[tuple[str, int]], size: int, fan: int
) -> None:
    store = Store(PageLayout(size, fan))
    for change, number in changes:
        if change == "roll":
            store.roll(number)
        else:
            store.truncate(store.end * number // 100, None if change == "truncate" else number % 7)
        start = store.head.start_offset
        listed = [item for item in store.items() if item.count and (item.next_offset or 0) > start]
        plain = {
            ledger: records for ledger, records in store.ledgers.items() if records and records.stop > start
        }
        assert {
            item.ledger_id: range(item.first_offset or 0, item.next_offset or 0) for item in listed
        } == plain
        assert len(store.head.items) <= size + 2
    store.truncate(store.end, None)
    assert not store.head.intents
    # Nothing is left but what the list names: no orphan ledger, no orphan page below the start.
    kept = {item.ledger_id for item in store.items()}
    assert {ledger for ledger, records in store.ledgers.items() if records} <= kept
    with pytest.raises(PastEndError):
        store.head.with_truncation(store.end + 1, store.end, 0)


@settings(max_examples=20, deadline=None)
@given(st.integers(200, 1500))
def test_the_head_stays_small_however_long_the_list(ledgers: int) -> None:
    store = Store(PageLayout(8, 8))
    for _ in range(ledgers):
        store.roll(3)
    assert store.head.item_count == ledgers
    assert len(store.head.pages) <= 8 * 5
    assert len(encode_head(store.head)) < 4000


def test_layouts_are_bounded() -> None:
    for layout in ((1, 2), (2, 1), (513, 2)):
        with pytest.raises(MisuseError, match="2 to 512"):
            PageLayout(*layout)
