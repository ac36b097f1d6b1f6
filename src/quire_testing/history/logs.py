"""One log's judge: its list is one chain, and its records are there once, in the order of their acknowledgements.

Invariant 10. Offsets are write-once cells like a ledger's entries; the list is a register whose every value is known.

Source: docs/formats/history.md, "What is judged": 10; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from quire_testing.history.asked import Asked
from quire_testing.history.cells import ACKED, FIRM, READ, Cells, Runs, ranges
from quire_testing.history.registers import ANYTHING, Call, RegisterSearch, log_list
from quire_testing.history.verdict import Findings, ids

NUMBER: Final = 10
NOWHERE: Final = -1


class LogJudge:
    """What is known of one log.

    Args:
        log: its name.
        width: bytes of a hash.
        findings: where violations go.
    """

    __slots__ = (
        "_ack_places",
        "_acked_last",
        "_calls",
        "_cells",
        "_findings",
        "_kept_from",
        "_last_of",
        "_leader",
        "_log",
        "_read_last",
        "_read_places",
        "_recorded",
        "_search",
        "_unplaced",
        "_versions",
        "_width",
    )

    def __init__(self, log: str, width: int, findings: Findings) -> None:
        self._log = log
        self._width = width
        self._findings = findings
        self._cells = Cells(width)
        self._ack_places, self._read_places = Runs(), Runs()
        self._acked_last = self._read_last = NOWHERE
        self._recorded = False
        self._unplaced: Counter[bytes] = Counter()
        """Hashes of appends that are under way or ended without an acknowledgement."""
        self._last_of: dict[tuple[str, int | None], tuple[int, int]] = {}
        """The last acknowledged offset of each process in its time as leader, and where."""
        self._leader: tuple[int, int] | None = None
        """The highest leader whose compare-and-swap was won, and where."""
        self._kept_from = 0
        self._versions: dict[int, tuple[tuple[int, ...], int]] = {}
        """The ledgers of each version, and where."""
        self._search = RegisterSearch(ANYTHING, log_list)
        self._calls: dict[int, Call] = {}

    def invoked(self, asked: Asked) -> None:
        """Something is asked of this log."""
        asked.acked = self._acked_last
        match asked.kind:
            case "log_append":
                self._recorded = True
                self._unplaced.update(self._split(asked.data))
            case "log_truncate":
                self._kept_from = max(self._kept_from, asked.facts["before"])
            case "list_swap" | "list_read":
                arguments = asked.facts.get("expected"), tuple(asked.facts.get("ledgers", ()))
                call = self._calls[asked.place] = Call(asked.kind, arguments, asked.place)
                self._search.invoke(call)

    def _split(self, data: bytes) -> list[bytes]:
        width = self._width
        return [data[start : start + width] for start in range(0, len(data), width)]

    def answered(self, asked: Asked, outcome: str, facts: dict[str, Any], place: int) -> None:
        """A response came."""
        match asked.kind:
            case "list_swap" | "list_read":
                self._list_answered(asked, outcome, facts, place)
            case "log_append" if outcome == "ok":
                self._append_done(asked, facts, place)
            case "log_read" if outcome == "ok":
                self._read_done(asked, facts, place)

    # --- the list -----------------------------------------------------------------------------------------------

    def _list_answered(self, asked: Asked, outcome: str, facts: dict[str, Any], place: int) -> None:
        call = self._calls.pop(asked.place)
        if outcome == "fail" or (outcome == "unknown" and asked.kind == "list_read"):
            self._search.fail(call)
            return
        if outcome == "unknown":
            self._search.unknown(call)
            return
        result: Any
        if asked.kind == "list_swap":
            result = facts.get("version", asked.facts["expected"] + 1)
            self._version_seen(result, tuple(asked.facts["ledgers"]), place)
            self._leader_won(asked, place)
        else:
            result = facts["version"], tuple(facts["ledgers"])
            self._version_seen(facts["version"], tuple(facts["ledgers"]), place)
        self._findings.checked(NUMBER)
        self._fits(self._search.ok(call, result, place))

    def _fits(self, call: Call | None) -> None:
        if call is None:
            return
        what = "swap of" if call.kind == "list_swap" else "read of"
        self._say(
            f"no order of the swaps explains the {what} its list that was asked at the first of these lines and answered "
            "at the second",
            call.invoked,
            call.answered,
        )

    def _version_seen(self, version: int, ledgers: tuple[int, ...], place: int) -> None:
        known = self._versions.setdefault(version, (ledgers, place))
        if known[0] != ledgers:
            self._say(
                f"version {version} of its list is {list(known[0])} for one and {list(ledgers)} for another",
                known[1],
                place,
            )
            return
        for earlier, later in ((version - 1, version), (version, version + 1)):
            if known[1] == place and earlier in self._versions and later in self._versions:
                before, after = self._versions[earlier], self._versions[later]
                if not follows(before[0], after[0]):
                    self._say(
                        f"its list went from {list(before[0])} to {list(after[0])} with version {later}: ledgers may "
                        "leave at the front and join at the end only",
                        before[1],
                        after[1],
                    )

    def _leader_won(self, asked: Asked, place: int) -> None:
        leader = asked.facts.get("leader")
        if leader is None:
            return
        if self._leader is not None and leader < self._leader[0] and self._leader[1] < asked.place:
            self._say(
                f"{asked.process} changed its list as leader {leader} although leader {self._leader[0]} had taken it over",
                self._leader[1],
                place,
            )
        if self._leader is None or leader > self._leader[0]:
            self._leader = leader, place

    # --- records ------------------------------------------------------------------------------------------------

    def _append_done(self, asked: Asked, facts: dict[str, Any], place: int) -> None:
        cells, count = self._cells, facts.get("count", len(asked.data) // self._width)
        if not count:
            return
        first, data = facts["first"], asked.data[: count * self._width]
        last = first + count - 1
        what = ids(first, last, "was", one="offset")
        self._findings.checked(NUMBER, count)
        self._unplaced.subtract(self._split(data))
        self._unplaced += Counter()
        leader = asked.facts.get("leader")
        mine = asked.process, leader
        before, where = self._last_of.get(mine, (NOWHERE, NOWHERE))
        if first <= before:
            self._say(f"{what} acknowledged to {asked.process} after offset {before} was", where, place)
        elif first <= asked.acked:
            self._say(
                f"{what} acknowledged to {asked.process}, who asked after offset {asked.acked} had been acknowledged",
                self._ack_places.place_of(asked.acked),
                place,
            )
        if leader is not None and self._leader is not None and leader < self._leader[0]:
            taken, won = self._leader
            if won < asked.place:
                self._say(
                    f"{what} acknowledged to {asked.process}, leader {leader}, who asked after leader {taken} had "
                    "taken the log over",
                    won,
                    place,
                )
        if leader is not None and (self._leader is None or leader > self._leader[0]):
            # A writer whose appends are acknowledged has won its compare-and-swap before.
            self._leader = leader, place
        self._last_of[mine] = max(before, last), place
        self._acked_last = max(self._acked_last, last)
        if cells.fresh(first, count) or (cells.same(first, data) and cells.none_have(first, count, ACKED)):
            cells.write(first, data, ACKED)
        else:
            self._acked_one_by_one(asked, first, data, place)
        self._ack_places.add(first, last, place)

    def _acked_one_by_one(self, asked: Asked, first: int, data: bytes, place: int) -> None:
        for number, value in enumerate(self._split(data), first):
            mark, known = self._cells.look(number)
            if mark & ACKED:
                self._say(
                    f"offset {number} was acknowledged twice, to {asked.process} the second time",
                    self._ack_places.place_of(number),
                    place,
                )
            elif mark & READ and known != value:
                self._say(
                    f"offset {number} was acknowledged to {asked.process} with hash {value.hex()}, but it had been read "
                    f"with hash {known.hex()}",
                    self._read_places.place_of(number),
                    place,
                )
            self._cells.write(number, value, ACKED)

    def _read_done(self, asked: Asked, facts: dict[str, Any], place: int) -> None:
        cells, first = self._cells, asked.facts["first"]
        data = bytes.fromhex(facts["hashes"])
        count = len(data) // self._width
        self._findings.checked(NUMBER, count)
        self._read_last = max(self._read_last, first + count - 1)
        if cells.same(first, data) and cells.all_have(first, count, FIRM):
            cells.mark(first, count, READ)
        else:
            for number, value in enumerate(self._split(data), first):
                self._value_read(asked, number, value, place)
        self._read_places.add(first, first + count - 1, place)
        for low, high in facts.get("missing", ()):
            self._missing(asked, low, high, place)

    def _value_read(self, asked: Asked, number: int, value: bytes, place: int) -> None:
        mark, known = self._cells.look(number)
        if mark & FIRM:
            if known != value:
                what = "acknowledged" if mark & ACKED else "read"
                places = self._ack_places if mark & ACKED else self._read_places
                self._say(
                    f"offset {number} was {what} with hash {known.hex()}, but {asked.process} read {value.hex()}",
                    places.place_of(number),
                    place,
                )
        elif self._recorded and not self._unplaced[value]:
            self._say(
                f"{asked.process} read hash {value.hex()} at offset {number}, which no client had appended there",
                place,
            )
            self._cells.write(number, value, FIRM)
            return
        else:
            self._cells.write(number, value, READ)
        self._cells.mark(number, 1, READ)

    def _missing(self, asked: Asked, low: int, high: int, place: int) -> None:
        """A client got the response that a log has no such records."""
        low, high = max(low, self._kept_from), min(high, max(asked.acked, self._read_last))
        self._findings.checked(NUMBER, max(0, high + 1 - low))
        missing = (number for number in range(low, high + 1) if self._was_there(number, asked))
        for first, last in ranges(missing):
            where = max(self._ack_places.place_of(first), self._read_places.place_of(first))
            what = ids(first, last, one="offset")
            self._say(
                f"{asked.process} got the response that there is no record at {what}, which had been acknowledged or read",
                where,
                place,
            )

    def _was_there(self, number: int, asked: Asked) -> bool:
        """An offset was acknowledged, or read, before something was asked."""
        mark = self._cells.look(number)[0]
        if mark & ACKED and number <= asked.acked:
            return True
        return bool(mark & READ) and self._read_places.place_of(number) < asked.place

    # --- facts, end ---------------------------------------------------------------------------------------------

    def noted(self, facts: dict[str, Any], place: int) -> None:
        """A version of its list was seen in the metadata store."""
        self._findings.checked(NUMBER)
        self._version_seen(facts["version"], tuple(facts["ledgers"]), place)

    def finish(self) -> None:
        """No more events will come."""
        self._fits(self._search.cut())
        if self._search.exhausted:
            self._findings.verdict.undecided.append(
                f"log {self._log}: the search for an order of its list's swaps"
            )
        if not self._recorded:
            return
        left = self._unplaced.copy()
        for number in self._cells.marked(READ, without=ACKED):
            value = self._cells.look(number)[1]
            left[value] -= 1
            if left[value] == -1:
                self._say(
                    f"offset {number} was read with hash {value.hex()} more often than it was appended: an append is in "
                    "the log twice",
                    self._read_places.place_of(number),
                )

    def _say(self, text: str, *places: int) -> None:
        self._findings.violation(NUMBER, f"log {self._log}: {text}", *places)


def follows(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a list can come from another: ledgers left at its front and joined at its end."""
    there = set(after)
    kept = tuple(ledger for ledger in before if ledger in there)
    return after[: len(kept)] == kept == before[len(before) - len(kept) :]
