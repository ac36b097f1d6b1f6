"""Histories as files: what is no event is refused with its line; torn ends are left out; several files are one history."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from history.scenes import Spoiled, clock, hashes, one_of_everything, text_of
from quire_testing.history import History, HistoryFile, MalformedHistoryError, judge, merged

HEADER = b'{"quire_history":1,"clock":"monotonic","hash":"crc32c","hash_digits":8}\n'
GOOD = {"at": 1, "process": "w", "event": "invoke", "operation": 0, "kind": "append", "ledger": 1}


def read(data, name=""):
    return list(HistoryFile(data.splitlines(keepends=True), name))


def test_what_was_written_is_read():
    events = Spoiled(one_of_everything()).events
    found = read(text_of(events))
    assert [(event.line, event.kind, event.facts) for event in found] == [
        (line, event.kind, event.facts) for line, event in enumerate(events, 2)
    ]
    assert judge(found).holds


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2: this is no JSON"),
        (b"\xff\xfe", "line 2: this is no JSON"),
        (b"[" * 100_000, "line 2: this is no JSON"),
        (b"7", "line 2: this is no JSON object"),
        ({**GOOD, "at": "now"}, "line 2: at must be nanoseconds"),
        ({**GOOD, "at": True}, "line 2: at must be nanoseconds"),
        ({**GOOD, "process": 7}, "line 2: process and kind must be texts"),
        ({**GOOD, "operation": None}, "line 2: an invocation and its answer need operation"),
        ({**GOOD, "event": "begin"}, "line 2: an event is invoke, ok, fail, unknown or note, not 'begin'"),
        ({**GOOD, "kind": "write"}, "line 2: there is no kind 'write'; there are create, append"),
        (GOOD, "line 2: invoke of append needs the field hashes"),
        ({**GOOD, "hashes": ""}, "line 2: hashes is empty"),
        ({**GOOD, "hashes": "abc"}, "line 2: hashes must be hexadecimal digits"),
        ({**GOOD, "hashes": "aa bb cc"}, "line 2: hashes must be hexadecimal digits"),
        ({**GOOD, "hashes": "abcdef"}, "line 2: hashes has 6 digits, which is no multiple of 8"),
        (
            {**GOOD, "hashes": "abcdef00", "frist": 1},
            "line 2: invoke of append has no field frist; it has ledger",
        ),
        ({**GOOD, "hashes": "abcdef00", "first": -1}, "line 2: first must be 0 or more"),
        ({**GOOD, "hashes": "abcdef00", "first": 1 << 63}, "line 2: first must be a whole number"),
        ({**GOOD, "ledger": "1"}, "line 2: invoke of append needs the field hashes"),
        ({**GOOD, "kind": "read", "first": 5, "last": 4}, "line 2: a read of 5..4 goes backwards"),
        ({**GOOD, "kind": "stored"}, "line 2: stored is a note"),
        ({**GOOD, "event": "note"}, "line 2: append is an operation, not a note"),
        ({**GOOD, "event": "ok"}, "line 2: this ok answers operation 0, which was not asked"),
        (
            {
                "at": 1,
                "process": "m",
                "event": "note",
                "kind": "metadata",
                "ledger": 1,
                "version": 1,
                "state": "closed",
            },
            "line 2: the record of a closed ledger needs its last entry",
        ),
        (
            {
                "at": 1,
                "process": "m",
                "event": "note",
                "kind": "replica",
                "bookie": "b",
                "ledger": 1,
                "first": 0,
                "hashes": "",
                "period": 1 << 40,
            },
            "line 2: a period is 1 to 60",
        ),
    ],
)
def test_a_line_that_is_no_event_is_named(line, says):
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    with pytest.raises(MalformedHistoryError) as error:
        judge(read(HEADER + data + b"\n"))
    assert error.value.message.startswith(says)
    assert error.value.ids["line"] == 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"operation": 1}, "this ok answers operation 1"),
        ({"process": "x"}, "operation 0 is a read of w, and this answers a read of x"),
        ({"kind": "open"}, "operation 0 is a read of w, and this answers a open of w"),
        ({"hashes": "00" * 12}, "more hashes than the 2 entries"),
        ({"missing": [[1, 3]]}, "1..3 lies outside of 1..2"),
        ({"missing": [[2, 1]]}, "missing must be a list of [first, last]"),
        ({"at": 0}, "time goes back"),
    ],
)
def test_an_answer_must_fit_its_question(answer, says):
    asked = {"at": 1, "process": "w", "event": "invoke", "operation": 0, "kind": "read", "ledger": 1}
    lines = [{**asked, "first": 1, "last": 2}, {**asked, "event": "ok", **answer}]
    lines[1].pop("ledger")
    data = HEADER + b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with pytest.raises(MalformedHistoryError, match="line 3: ") as error:
        judge(read(data))
    assert says in error.value.message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "line 1: the file is empty"),
        (b"hello\n", "line 1: this is no JSON"),
        (b"{}\n", "line 1: the first line must be a header"),
        (b'{"quire_history":2}\n', "line 1: the first line must be a header"),
        (b'{"quire_history":1,"hash_digits":7}\n', "line 1: hash_digits must be an even number"),
    ],
)
def test_the_header(data, says):
    with pytest.raises(MalformedHistoryError) as error:
        read(data)
    assert error.value.message.startswith(says)


def test_a_torn_last_line_is_left_out():
    data = text_of(one_of_everything()[:10])
    for cut in range(1, 60):
        file = HistoryFile(data[:-cut].splitlines(keepends=True))
        found = list(file)
        assert len(found) == (10 if cut == 1 else 9)
        assert file.torn == (cut > 1)


def test_a_torn_line_in_the_middle_is_not():
    lines = text_of(one_of_everything()[:10]).splitlines(keepends=True)
    lines[4] = lines[4][:20] + b"\n"
    with pytest.raises(MalformedHistoryError, match="line 5"):
        list(HistoryFile(lines))


@given(st.binary(max_size=200))
def test_garbage_is_refused_in_a_sentence(garbage):
    told = ""
    try:
        judge(read(HEADER + garbage))
    except MalformedHistoryError as error:
        told = error.message
    assert not told or told.startswith("line ")


def two_processes(*, clocks=("monotonic", "monotonic"), second="entry"):
    """A writer and a reader, each with its own file, on one clock."""
    now, files = clock(), ([], [])
    writer = History(now, files[0].append, clock=clocks[0])
    reader = History(now, files[1].append, clock=clocks[1])
    writer.invoke("w", "create").ok(ledger=1)
    writer.invoke("w", "append", ledger=1, first=0, hashes=hashes(0, 3)).ok()
    reader.invoke("r", "read", ledger=1, first=0, last=3).ok(hashes=hashes(0, 3, second))
    return [
        HistoryFile([line.encode() for line in lines], name)
        for lines, name in zip(files, ("w.jsonl", "r.jsonl"), strict=True)
    ]


def test_several_files_are_one_history():
    assert judge(merged(two_processes())).holds
    verdict = judge(merged(two_processes(second="other")))
    assert verdict.counts == {1: 4}
    assert verdict.violations[0].lines == ("w.jsonl:5", "r.jsonl:3")


def test_histories_of_two_clocks_are_not_compared():
    with pytest.raises(MalformedHistoryError, match="cannot be judged together"):
        merged(two_processes(clocks=("this", "that")))


def test_at_one_instant_invocations_come_first():
    """Two files with the same nanosecond: what was told then may have been told before or after, so it counts as overlap."""
    files = two_processes()
    events = sorted((event for file in files for event in file), key=lambda event: event.at)
    for event in events:
        event.at = 5
    first = [event for event in events if event.file == "w.jsonl"]
    second = [event for event in events if event.file == "r.jsonl"]
    order = [(event.process, event.event) for event in merged([_Lines(first), _Lines(second)])]
    assert order.index(("r", "invoke")) < order.index(("w", "ok"))


class _Lines(list):
    name, clock, hash, hash_digits = "x", "monotonic", "crc32c", 8
