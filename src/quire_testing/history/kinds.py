"""What an event may say: every kind with its fields, as a table.

A field that is not in the table is refused, so that a misspelt one cannot pass as an absent one; `comment` and fields
that begin with `x_` are free.

Source: docs/formats/history.md, "Operations", "Notes".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class EventKind:
    """The fields of one kind of event.

    Args:
        what: one sentence for the documents.
        invoke: what the invocation (or the note) must say.
        invoke_may: what it may say besides.
        ok: what the result must say.
        ok_may: what it may say besides.
        note: it is no operation but a fact, in one line.
        free: any other field is welcome.
    """

    what: str
    invoke: dict[str, str]
    invoke_may: dict[str, str] = field(default_factory=dict)
    ok: dict[str, str] = field(default_factory=dict)
    ok_may: dict[str, str] = field(default_factory=dict)
    note: bool = False
    free: bool = False


LEDGER: Final = {"ledger": "int"}
QUORUMS: Final = {"ensemble_size": "int", "write_quorum": "int", "ack_quorum": "int"}

STRIPES: Final = {"period": "int", "residues": "int"}
"""The stripes of a striped ledger that a bookie holds: ids whose remainder by the period has its bit in `residues`."""

OPERATIONS: Final = {
    "create": EventKind("a ledger is made", {}, {**LEDGER, **QUORUMS}, ok_may={**LEDGER}),
    "append": EventKind(
        "consecutive entries are added by the writer of a term; `count`: only this many of them were acknowledged",
        {**LEDGER, "hashes": "hashes"},
        {"first": "int", "term": "int"},
        ok_may={"first": "int", "count": "int", "lac": "int"},
    ),
    "read": EventKind(
        "entries `first..last` are read; `hashes` are those of `first` and its successors",
        {**LEDGER, "first": "int", "last": "int"},
        ok_may={"hashes": "hashes", "missing": "ranges", "unsure": "ranges", "lac": "int"},
    ),
    "read_lac": EventKind("the last add confirmed is asked for", LEDGER, ok={"lac": "int"}),
    "open": EventKind(
        "a reader opens a ledger, with recovery or without",
        {**LEDGER, "recover": "bool"},
        ok={"closed": "bool"},
        ok_may={"last": "int", "lac": "int"},
    ),
    "recover": EventKind("a recovery that closes the ledger", LEDGER, ok={"last": "int"}),
    "fence": EventKind("the ledger's bookies are asked to refuse its writer", LEDGER, ok_may={"lac": "int"}),
    "takeover": EventKind(
        "a client becomes the writer of a term that begins at entry `first`",
        {**LEDGER, "term": "int"},
        ok={"first": "int"},
    ),
    "resolve": EventKind(
        "a writer that a later term superseded asks what became of its entries; `kept`: all of them are there, or none",
        {**LEDGER, "first": "int", "hashes": "hashes"},
        {"term": "int"},
        ok={"kept": "bool"},
    ),
    "close": EventKind("the writer seals its ledger", LEDGER, ok={"last": "int"}),
    "delete": EventKind("the ledger is deleted", LEDGER),
    "change_ensemble": EventKind(
        "the writer puts other bookies into the fragment that begins at `first`",
        {**LEDGER, "first": "int", "ensemble": "names"},
        ok_may={"version": "int"},
    ),
    "list_swap": EventKind(
        "the list of a log's ledgers is changed if its version is `expected` (-1: if there is none)",
        {"log": "str", "expected": "int", "ledgers": "ints"},
        {"leader": "int"},
        ok_may={"version": "int"},
    ),
    "list_read": EventKind(
        "the list of a log is read", {"log": "str"}, ok={"version": "int", "ledgers": "ints"}
    ),
    "log_append": EventKind(
        "consecutive records are appended to a log; `first` is the offset of the first, `count` as in append",
        {"log": "str", "hashes": "hashes"},
        {"leader": "int"},
        ok={"first": "int"},
        ok_may={"count": "int"},
    ),
    "log_read": EventKind(
        "records of a log are read from offset `first` on",
        {"log": "str", "first": "int"},
        {"last": "int"},
        ok={"hashes": "hashes"},
        ok_may={"missing": "ranges", "unsure": "ranges"},
    ),
    "log_truncate": EventKind("records below offset `before` are removed", {"log": "str", "before": "int"}),
    "get": EventKind("a metadata register is read", {"key": "str"}, ok={"value": "value"}),
    "swap": EventKind(
        "a metadata register is set if it holds `expected`; null is an absent key",
        {"key": "str", "expected": "value", "value": "value"},
    ),
    "sink_commit": EventKind("a sink makes the rows of an epoch visible", {"sink": "str", "epoch": "int"}),
}
"""A request and its response: two lines, or one if the response never came."""

NOTES: Final = {
    "stored": EventKind(
        "a bookie accepted entries",
        {"bookie": "str", **LEDGER, "first": "int", "hashes": "hashes"},
        {"term": "int", "recovery": "bool", **STRIPES},
        note=True,
    ),
    "synced": EventKind("all that a bookie accepted is on its disk", {"bookie": "str"}, note=True, free=True),
    "fenced": EventKind("a bookie fenced a ledger", {"bookie": "str", **LEDGER}, {"term": "int"}, note=True),
    "truncated": EventKind(
        "a bookie dropped what it held of a ledger beyond `last`",
        {"bookie": "str", **LEDGER, "last": "int"},
        {"term": "int"},
        note=True,
    ),
    "crashed": EventKind("a process died", {}, note=True, free=True),
    "started": EventKind("a process began", {}, note=True, free=True),
    "metadata": EventKind(
        "one version of a ledger's record; `fragments` are pairs of first entry and ensemble",
        {**LEDGER, "version": "int", "state": "state"},
        {"last": "int", "term": "int", **QUORUMS, "fragments": "fragments"},
        note=True,
    ),
    "log_list": EventKind(
        "one version of a log's list",
        {"log": "str", "version": "int", "ledgers": "ints"},
        {"leader": "int"},
        note=True,
    ),
    "replica": EventKind(
        "the final scan found these entries on a bookie",
        {"bookie": "str", **LEDGER, "first": "int", "hashes": "hashes"},
        STRIPES,
        note=True,
    ),
    "scanned": EventKind(
        "the final scan of a ledger on a bookie is complete: what no `replica` said is not there",
        {"bookie": "str", **LEDGER},
        note=True,
    ),
    "quiescent": EventKind(
        "nothing was under way any more; `guaranteed`: every entry was promised to be on Qw bookies",
        {},
        {"guaranteed": "bool"},
        note=True,
    ),
    "source_rows": EventKind(
        "rows that a source gave to an epoch",
        {"sink": "str", "epoch": "int", "hashes": "hashes"},
        note=True,
    ),
    "sink_rows": EventKind(
        "rows of an epoch that are in the sink at the end",
        {"sink": "str", "epoch": "int", "hashes": "hashes"},
        note=True,
    ),
    "comment": EventKind("anything for a reader; it is not judged", {}, note=True, free=True),
}
"""Facts without a request: one line."""

KINDS: Final = {**OPERATIONS, **NOTES}


INT_MAX: Final = 1 << 62


def is_int(value: Any) -> bool:
    """A whole number that fits into 63 bits; JSON's true is none."""
    return type(value) is int and -INT_MAX < value < INT_MAX


def is_ranges(value: Any) -> bool:
    """Pairs of first and last, ascending."""
    return isinstance(value, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and is_int(pair[0])
        and is_int(pair[1])
        and pair[0] <= pair[1]
        for pair in value
    )


def is_names(value: Any) -> bool:
    """A list of strings."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def is_fragments(value: Any) -> bool:
    """Pairs of first entry and ensemble, ascending, not none."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(pair, list) and len(pair) == 2 and is_int(pair[0]) and is_names(pair[1])
            for pair in value
        )
        and all(before[0] < after[0] for before, after in pairwise(value))
    )


def is_hashes(value: Any) -> bool:
    """Hexadecimal digits and nothing else."""
    try:
        return isinstance(value, str) and 2 * len(bytes.fromhex(value)) == len(value)
    except ValueError:
        return False


TYPES: Final[dict[str, tuple[str, Any]]] = {
    "int": ("a whole number", is_int),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "str": ("a text", lambda value: isinstance(value, str)),
    "value": ("a text or null", lambda value: value is None or isinstance(value, str)),
    "state": ("open, in_recovery or closed", lambda value: value in {"open", "in_recovery", "closed"}),
    "ints": ("a list of whole numbers", lambda value: isinstance(value, list) and all(map(is_int, value))),
    "names": ("a list of texts", is_names),
    "ranges": ("a list of [first, last]", is_ranges),
    "fragments": ("a list of [first entry, [bookies]], ascending", is_fragments),
    "hashes": ("hexadecimal digits", is_hashes),
}
"""The types of fields: how they are called, and whether a value is one."""
