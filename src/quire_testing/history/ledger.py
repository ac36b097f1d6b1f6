"""One ledger's judge: the responses to its writers, readers and recoverers must be consistent.

Invariants 1 to 7. A ledger has one writer per term and write-once entries, so that no search is needed: each event is
compared with what is known so far, and a little at the end.

Source: docs/formats/history.md, "What is judged": 1 to 7; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from quire_testing.history.asked import Asked
from quire_testing.history.cells import ACKED, ENDED, FIRM, READ, SENT, Cells, Runs, ranges
from quire_testing.history.replicas import Replicas
from quire_testing.history.verdict import Findings, ids

NOWHERE: Final = -1


class LedgerJudge:
    """What is known of one ledger.

    Args:
        ledger: its id.
        width: bytes of a hash.
        findings: where violations go.
    """

    __slots__ = (
        "_ack_places",
        "_acked_last",
        "_cells",
        "_closed",
        "_created",
        "_delete",
        "_deleted",
        "_findings",
        "_lac",
        "_lac_of",
        "_ledger",
        "_lost",
        "_metadata",
        "_next_ack",
        "_read_last",
        "_read_places",
        "_recorded",
        "_replicas",
        "_sent_last",
        "_some_ended",
        "_takeovers",
        "_unplaced",
        "_width",
    )

    def __init__(self, ledger: int, width: int, findings: Findings) -> None:
        self._ledger = ledger
        self._width = width
        self._findings = findings
        self._cells = Cells(width)
        self._ack_places = Runs()
        self._read_places = Runs()
        self._created = False
        self._recorded = False
        """An append is in the history: then all of them are, and what is read must be one of them."""
        self._sent_last = self._acked_last = self._read_last = NOWHERE
        self._next_ack: dict[int, int] = {}
        self._unplaced: Counter[bytes] = Counter()
        """Hashes of appends whose ids are unknown."""
        self._lac = (NOWHERE, NOWHERE)
        """The highest LAC that a client saw, and where."""
        self._lac_of: dict[str, tuple[int, int]] = {}
        self._closed: tuple[int, int] | None = None
        """The last entry as it was first said, and where."""
        self._delete = NOWHERE
        self._deleted = False
        self._takeovers: list[tuple[int, int, int]] = []
        """Term, its first entry, and where."""
        self._lost: dict[tuple[int, bytes], int] = {}
        """Entries that a resolve called lost, and where."""
        self._metadata: tuple[int, dict[str, Any], int] | None = None
        self._some_ended = False
        self._replicas = Replicas(ledger, self._cells, findings)

    # --- what is asked ------------------------------------------------------------------------------------------

    def invoked(self, asked: Asked) -> None:
        """Something is asked of this ledger."""
        asked.acked = self._acked_last
        asked.lac = self._lac_of.get(asked.process, (NOWHERE, NOWHERE))[0]
        if asked.kind == "append":
            self._append_invoked(asked)
        elif asked.kind == "delete":
            self._delete = asked.place if self._delete == NOWHERE else self._delete

    def _append_invoked(self, asked: Asked) -> None:
        self._recorded = True
        data, first = asked.data, asked.facts.get("first")
        if first is None:
            self._unplaced.update(self._split(data))
            return
        count = len(data) // self._width
        self._sent_last = max(self._sent_last, first + count - 1)
        if self._deleted:
            return
        if self._cells.fresh(first, count):
            self._cells.write(first, data, SENT)
            return
        for number, value in enumerate(self._split(data), first):
            mark, known = self._cells.look(number)
            if not mark:
                self._cells.write(number, value, SENT)
            elif known != value:
                self._cells.others.setdefault(number, set()).add(value)
            else:
                self._cells.mark(number, 1, SENT)

    def _split(self, data: bytes) -> list[bytes]:
        width = self._width
        return [data[start : start + width] for start in range(0, len(data), width)]

    # --- what is answered ---------------------------------------------------------------------------------------

    def answered(self, asked: Asked, outcome: str, facts: dict[str, Any], place: int) -> None:
        """A response came."""
        if outcome != "ok":
            self._not_done(asked, outcome)
            return
        match asked.kind:
            case "create":
                self._created = True
            case "append":
                self._append_done(asked, facts, place)
            case "read":
                self._read_done(asked, facts, place)
            case "open" | "recover" | "close":
                if facts.get("closed", True):
                    self.closed_at(facts["last"], place, f"{asked.kind} by {asked.process}")
            case "takeover":
                self._takeover_done(asked, facts["first"], place)
            case "resolve":
                self._resolved(asked, place, kept=facts["kept"])
            case "change_ensemble":
                self._change_done(asked, place)
            case "delete":
                self.finish(pending=[])
                self._deleted = True
                self._cells = Cells(self._width)
                self._ack_places, self._read_places = Runs(), Runs()
        if "lac" in facts:
            self._lac_seen(asked, facts["lac"], place)

    def _not_done(self, asked: Asked, outcome: str) -> None:
        if asked.kind == "append" and "first" in asked.facts and not self._deleted:
            self._ended(asked.facts["first"], len(asked.data) // self._width)
        elif asked.kind == "delete" and outcome == "fail" and self._delete == asked.place:
            self._delete = NOWHERE

    def _ended(self, first: int, count: int) -> None:
        """These were sent, and not confirmed to a caller."""
        if count:
            self._cells.mark(first, count, ENDED)
            self._some_ended = True

    def _append_done(self, asked: Asked, facts: dict[str, Any], place: int) -> None:
        findings, count = self._findings, facts.get("count", len(asked.data) // self._width)
        data = asked.data[: count * self._width]
        sent = asked.facts.get("first")
        first: int = facts["first"] if sent is None else facts.get("first", sent)
        last = first + count - 1
        if sent is not None and not self._deleted:
            self._ended(last + 1, len(asked.data) // self._width - count)
        if not count:
            return
        if sent is None:
            self._unplaced.subtract(self._split(data))
            self._unplaced += Counter()
            self._sent_last = max(self._sent_last, last)
        elif first != sent:
            self._say(
                4,
                f"{ids(sent, sent + count - 1)} of {asked.process} was acknowledged as {first}..{last}",
                place,
            )
        self._check_order(asked, first, last, place)
        self._check_superseded(asked, first, last, place)
        if self._closed is not None:
            findings.checked(6, count)
            end, where = self._closed
            if last > end:
                low = max(first, end + 1)
                self._say(
                    6,
                    f"{ids(low, last, 'was')} acknowledged to {asked.process} although the ledger had been closed at {end}",
                    where,
                    place,
                )
        self._acked_last = max(self._acked_last, last)
        if self._deleted:
            return
        findings.checked(1, count)
        self._check_lost(asked, first, data, place, "acknowledged")
        if self._cells.same(first, data) and self._cells.all_have(first, count, SENT):
            self._cells.mark(first, count, ACKED)
        else:
            self._acked_one_by_one(asked, first, data, place)
        self._ack_places.add(first, last, place)

    def _acked_one_by_one(self, asked: Asked, first: int, data: bytes, place: int) -> None:
        for number, value in enumerate(self._split(data), first):
            mark, known = self._cells.look(number)
            if mark & FIRM and known != value:
                what = "had been acknowledged" if mark & ACKED else "had been read"
                before = (self._ack_places if mark & ACKED else self._read_places).place_of(number)
                self._say(
                    1,
                    f"entry {number} was acknowledged to {asked.process} with hash {value.hex()}, "
                    f"but it {what} with hash {known.hex()}",
                    before,
                    place,
                )
                continue
            self._adopt(number, value, SENT | ACKED)

    def _adopt(self, number: int, value: bytes, bits: int) -> None:
        mark, known = self._cells.look(number)
        if mark & SENT and known != value:
            self._cells.others.setdefault(number, set()).add(known)
        self._cells.write(number, value, bits)

    def _check_order(self, asked: Asked, first: int, last: int, place: int) -> None:
        term = asked.facts.get("term", 0)
        begin = next((begin for taken, begin, _ in self._takeovers if taken == term), None)
        if begin is None and term == 0 and self._created:
            begin = 0
        expected = self._next_ack.get(term, begin)
        self._findings.checked(4, last - first + 1)
        if expected is not None and first != expected:
            missed = (
                f"entry {expected} was next"
                if first > expected
                else f"up to {expected - 1} they were acknowledged before"
            )
            self._say(
                4, f"{ids(first, last, 'was')} acknowledged to {asked.process} out of order: {missed}", place
            )
        self._next_ack[term] = max(last + 1, self._next_ack.get(term, 0))

    def _check_superseded(self, asked: Asked, first: int, last: int, place: int) -> None:
        term = asked.facts.get("term", 0)
        for taken, begin, where in self._takeovers:
            if taken <= term:
                continue
            self._findings.checked(6, last - first + 1)
            if where < asked.place or last >= begin:
                self._say(
                    6,
                    f"{ids(first, last, 'was')} acknowledged to {asked.process} in term {term} "
                    f"although term {taken} had begun at entry {begin}",
                    where,
                    place,
                )
                return

    def _takeover_done(self, asked: Asked, first: int, place: int) -> None:
        term = asked.facts["term"]
        for taken, _, where in self._takeovers:
            self._findings.checked(6)
            if taken >= term:
                self._say(
                    6, f"term {term} of {asked.process} began although term {taken} had begun", where, place
                )
        for low, high in ranges(number for number in self._cells.marked(ACKED) if number >= first):
            self._say(
                1,
                f"{ids(low, high)} had been acknowledged, but term {term} begins at entry {first}",
                self._ack_places.place_of(low),
                place,
            )
        self._takeovers.append((term, first, place))

    def _change_done(self, asked: Asked, place: int) -> None:
        self._findings.checked(5)
        if self._closed is not None and self._closed[1] < asked.place:
            self._say(
                5,
                f"{asked.process} changed the ensemble of a ledger that had been closed",
                self._closed[1],
                place,
            )

    # --- reads --------------------------------------------------------------------------------------------------

    def _read_done(self, asked: Asked, facts: dict[str, Any], place: int) -> None:
        if self._deleted:
            return
        first = asked.facts["first"]
        data = bytes.fromhex(facts.get("hashes", ""))
        if data:
            self._values_read(asked, first, data, place)
        for low, high in facts.get("missing", ()):
            self._missing(asked, low, high, place)

    def _values_read(self, asked: Asked, first: int, data: bytes, place: int) -> None:
        cells, count = self._cells, len(data) // self._width
        last = first + count - 1
        self._read_last = max(self._read_last, last)
        self._findings.checked(2, count)
        self._check_lost(asked, first, data, place, "read")
        if self._closed is not None and last > self._closed[0]:
            self._beyond(max(first, self._closed[0] + 1), last, asked.place, place)
        if self._recorded:
            self._findings.checked(3, count)
        if self._some_ended and not cells.none_have(first, count, ENDED):
            self._findings.checked(7, count)
        if cells.all_have(first, count, SENT | READ) and cells.same(first, data):
            self._findings.checked(1, count)
            if not cells.all_have(first, count, READ):
                self._read_places.add(first, last, place)
                cells.mark(first, count, READ)
            return
        for number, value in enumerate(self._split(data), first):
            self._value_read(asked, number, value, place)
        self._read_places.add(first, last, place)

    def _value_read(self, asked: Asked, number: int, value: bytes, place: int) -> None:
        cells = self._cells
        mark, known = cells.look(number)
        if mark & ACKED:
            self._findings.checked(1)
        if mark & FIRM:
            if known != value:
                self._other_value(asked, number, value, place)
            cells.mark(number, 1, READ)
            return
        known_to_be = READ
        if self._recorded and not cells.candidate(number, value) and not self._unplaced[value]:
            self._say(
                3,
                f"{asked.process} read entry {number} with hash {value.hex()}, which no client had appended",
                place,
            )
            known_to_be |= SENT
        self._adopt(number, value, known_to_be)

    def _other_value(self, asked: Asked, number: int, value: bytes, place: int) -> None:
        mark, known = self._cells.look(number)
        if mark & ACKED:
            self._say(
                1,
                f"entry {number} was acknowledged with hash {known.hex()}, but {asked.process} read {value.hex()}",
                self._ack_places.place_of(number),
                place,
            )
            return
        self._say(
            7 if mark & ENDED else 2,
            f"entry {number} was read with hash {known.hex()}, but {asked.process} read {value.hex()}",
            self._read_places.place_of(number),
            place,
        )

    def _resolved(self, asked: Asked, place: int, *, kept: bool) -> None:
        """What became of entries whose writer was superseded: kept is as if they had been read."""
        first, data = asked.facts["first"], bytes.fromhex(asked.facts["hashes"])
        self._findings.checked(7, len(data) // self._width)
        if self._deleted:
            return
        if kept:
            self._values_read(asked, first, data, place)
            return
        for number, value in enumerate(self._split(data), first):
            mark, known = self._cells.look(number)
            if mark & FIRM and known == value:
                before = (self._ack_places if mark & ACKED else self._read_places).place_of(number)
                what = "acknowledged" if mark & ACKED else "read"
                self._say(
                    7, f"entry {number} is lost, says {asked.process}, but had been {what}", before, place
                )
            self._lost.setdefault((number, value), place)

    def _check_lost(self, asked: Asked, first: int, data: bytes, place: int, what: str) -> None:
        """An entry that was called lost is neither read nor acknowledged."""
        if not self._lost:
            return
        for number, value in enumerate(self._split(data), first):
            if (where := self._lost.get((number, value))) is not None:
                text = f"entry {number} was {what} by {asked.process}, but had been called lost"
                self._say(7, text, where, place)

    def _beyond(self, first: int, last: int, asked_place: int, place: int) -> None:
        """Entries were read that lie beyond the end of a closed ledger."""
        assert self._closed is not None
        end, where = self._closed
        ended = self._cells.look(first)[0] & ENDED
        number = 7 if ended else 3 if where < asked_place else 2
        self._say(number, f"{ids(first, last, 'was')} read, but the ledger was closed at {end}", where, place)

    def _missing(self, asked: Asked, low: int, high: int, place: int) -> None:
        """A client got the response that there are no such entries."""
        findings = self._findings
        if self._delete != NOWHERE:
            return
        end = self._closed[0] if self._closed is not None and self._closed[1] < asked.place else NOWHERE
        high = min(high, max(self._acked_last, self._read_last, end, self._lac[0]))
        reasons: dict[tuple[int, str, int], list[int]] = {}
        for number in range(low, high + 1):
            mark = self._cells.look(number)[0]
            if mark & ACKED and number <= asked.acked:
                reason = 1, "had been acknowledged", self._ack_places.place_of(number)
            elif mark & READ and (read := self._read_places.place_of(number)) < asked.place:
                reason = 7 if mark & ENDED else 2, "had been read", read
            elif number <= end and self._closed is not None:
                reason = 3, f"should be there up to {end}, where the ledger was closed", self._closed[1]
            elif number <= self._lac[0] and self._lac[1] < asked.place:
                reason = 4, f"should be there up to the LAC {self._lac[0]} that was reported", self._lac[1]
            else:
                continue
            reasons.setdefault(reason, []).append(number)
        for invariant in (1, 2, 3):
            findings.checked(invariant, max(0, high + 1 - low))
        for (invariant, why, where), numbers in reasons.items():
            for first, last in ranges(iter(numbers)):
                self._say(
                    invariant,
                    f'{asked.process} got "no such entry" for {ids(first, last)}, which {why}',
                    where,
                    place,
                )

    # --- LAC, end -----------------------------------------------------------------------------------------------

    def _lac_seen(self, asked: Asked, lac: int, place: int) -> None:
        self._findings.checked(4)
        before, where = self._lac_of.get(asked.process, (NOWHERE, NOWHERE))
        if lac < asked.lac:
            self._say(
                4, f"the LAC that {asked.process} saw went back from {asked.lac} to {lac}", where, place
            )
        if lac >= before:
            self._lac_of[asked.process] = lac, place
        if lac > self._lac[0]:
            self._lac = lac, place
        if self._closed is not None and lac > self._closed[0]:
            self._say(
                4,
                f"{asked.process} saw the LAC {lac} of a ledger closed at {self._closed[0]}",
                self._closed[1],
                place,
            )

    def closed_at(self, last: int, place: int, who: str) -> None:
        """An event shows that the ledger is closed, and where it ends."""
        self._findings.checked(5)
        if self._closed is not None:
            end, where = self._closed
            if end != last:
                self._say(5, f"it was closed at {end}, but {who} says {last}", where, place)
            return
        self._closed = last, place
        if self._recorded:
            self._findings.checked(3)
            if last > self._sent_last + self._unplaced.total():
                self._say(
                    3, f"{who} closed it at {last}, but only {self._sent_last} had been appended", place
                )
        if self._deleted:
            return
        self._findings.checked(1)
        if max(self._acked_last, self._read_last) > last:
            self._lost_by_closing(last, place, who)
        if self._lac[0] > last:
            self._say(
                4,
                f"{who} closed it at {last}, below the LAC {self._lac[0]} that was reported",
                self._lac[1],
                place,
            )

    def _lost_by_closing(self, last: int, place: int, who: str) -> None:
        for low, high in ranges(number for number in self._cells.marked(ACKED) if number > last):
            where = self._ack_places.place_of(low)
            self._say(
                1, f"{ids(low, high)} had been acknowledged, but {who} closed it at {last}", where, place
            )
        for bits, without, number in ((ENDED, ACKED, 7), (READ, ACKED | ENDED, 2)):
            beyond = (
                entry
                for entry in self._cells.marked(bits, without)
                if entry > last and self._cells.look(entry)[0] & READ
            )
            for low, high in ranges(beyond):
                where = self._read_places.place_of(low)
                self._say(
                    number, f"{ids(low, high)} had been read, but {who} closed it at {last}", where, place
                )

    # --- facts --------------------------------------------------------------------------------------------------

    def noted(self, kind: str, facts: dict[str, Any], place: int) -> None:
        """A fact about this ledger."""
        if kind == "metadata":
            self._metadata_noted(facts, place)
        elif not self._deleted:
            self._replicas.noted(kind, facts, place, recorded=self._recorded, unplaced=self._unplaced)

    def _metadata_noted(self, facts: dict[str, Any], place: int) -> None:
        findings = self._findings
        known = self._metadata
        findings.checked(5)
        if known is not None and facts["version"] == known[0] and facts != known[1]:
            self._say(5, f"version {known[0]} of its record has two contents", known[2], place)
        if known is None or facts["version"] > known[0]:
            if known is not None and known[1]["state"] == "closed" and facts["state"] != "closed":
                self._say(
                    5,
                    f"its record went from closed to {facts['state']} at version {facts['version']}",
                    known[2],
                    place,
                )
            self._metadata = facts["version"], facts, place
        if facts["state"] == "closed":
            self.closed_at(facts["last"], place, f"version {facts['version']} of its record")

    def finish(self, pending: list[Asked], *, guaranteed: bool = False) -> None:
        """No more events will come, or the ledger is deleted.

        Args:
            pending: operations on this ledger that were never answered.
            guaranteed: every entry of a closed ledger was promised to be on Qw bookies.
        """
        if self._deleted:
            return
        self._check_lac_in_hindsight(pending)
        self._check_unplaced()
        if self._delete == NOWHERE:
            end = self._closed[0] if self._closed is not None else None
            record = self._metadata[1] if self._metadata is not None else None
            self._replicas.finish(end, self._acked_last, record, guaranteed=guaranteed)

    def _check_lac_in_hindsight(self, pending: list[Asked]) -> None:
        """What was reported as LAC must have been acknowledged, or found by a recovery, even if later."""
        if not self._recorded or self._lac[0] == NOWHERE:
            return
        true = max(self._acked_last, self._closed[0] if self._closed is not None else NOWHERE)
        if any(asked.kind in {"append", "recover", "open", "takeover"} for asked in pending):
            true = max(true, self._sent_last + self._unplaced.total())
        self._findings.checked(4)
        if self._lac[0] > true:
            self._say(
                4,
                f"a client saw the LAC {self._lac[0]}, but {true} is the highest that was confirmed",
                self._lac[1],
            )

    def _check_unplaced(self) -> None:
        """Entries read that no append with a known id explains: each must be one of those without."""
        if not self._recorded:
            return
        left = self._unplaced.copy()
        for number in self._cells.marked(READ, without=SENT | ACKED):
            value = self._cells.look(number)[1]
            left[value] -= 1
            if left[value] == -1:
                self._say(
                    3,
                    f"entry {number} was read with hash {value.hex()} more often than it was appended",
                    self._read_places.place_of(number),
                )

    def _say(self, number: int, text: str, *places: int) -> None:
        self._findings.violation(number, f"ledger {self._ledger}: {text}", *places)
