"""The recorder: what is told is written down at once, in order, one line each."""

import json

from quire_testing.history import History, entry_hash, entry_hashes


def clock():
    now = 0

    def now_ns():
        nonlocal now
        now += 5
        return now

    return now_ns


def test_each_event_is_a_line_at_once():
    lines = []
    history = History(clock(), lines.append)
    operation = history.invoke("writer", "append", ledger=7, first=0, hashes=entry_hashes([b"a", b"b"]))
    assert len(lines) == 2
    operation.ok(first=0)
    history.invoke("writer", "close", ledger=7).unknown(TimeoutError())
    history.note("b1", "synced", bookie="b1")
    assert [json.loads(line) for line in lines] == [
        {"quire_history": 1, "clock": "monotonic", "hash": "crc32c", "hash_digits": 8},
        {
            "at": 5,
            "process": "writer",
            "event": "invoke",
            "operation": 0,
            "kind": "append",
            "ledger": 7,
            "first": 0,
            "hashes": entry_hash(b"a") + entry_hash(b"b"),
        },
        {"at": 10, "process": "writer", "event": "ok", "operation": 0, "kind": "append", "first": 0},
        {"at": 15, "process": "writer", "event": "invoke", "operation": 1, "kind": "close", "ledger": 7},
        {
            "at": 20,
            "process": "writer",
            "event": "unknown",
            "operation": 1,
            "kind": "close",
            "error": "TimeoutError",
        },
        {"at": 25, "process": "b1", "event": "note", "kind": "synced", "bookie": "b1"},
    ]
    assert all(line.endswith("\n") for line in lines)


def test_without_a_sink_the_events_stay():
    history = History(clock())
    history.invoke("r", "read", ledger=1, first=0, last=0).fail("NoSuchLedgerError")
    assert [(event.line, event.event, event.facts) for event in history.events] == [
        (1, "invoke", {"ledger": 1, "first": 0, "last": 0}),
        (2, "fail", {"error": "NoSuchLedgerError"}),
    ]


def test_the_hash_of_an_entry():
    assert entry_hash(b"123456789") == "e3069283"
