"""The explorer's own check, a third time: the public specification of unbounded ledgers, its two slips mended.

A transcription, action by action, of `ProtocolUnboundedLedgersAndGWQ.tla` (Vanlightly/bookkeeper-tlaplus, December 2021) for
as many bookies as the write quorum: there is no second ensemble, so none is replaced, nothing is sent again.

| two bookies, two clients, one value | distinct | depth |
| --- | --- | --- |
| Qw 2, Qa 1, S3 and S4 mended | 335,011 | 34 |

`slips` puts them back: with S3 the LAFR is counted from the LAC, with S4 the LAC and the LAFR of a recovering client stay 0.

Source: BookKeeper TLA+ specifications; docs/testing-coverage.md, "The slips of the sources".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from quire_testing.explorer.calibration import DELIVERED, LOST, PROCESSED
from quire_testing.explorer.invariants import Violation

Message: TypeAlias = tuple[Any, ...]
"""(kind, bookie, client, term, ...): `add` entry, data, lac, lafr, truncates; `added` entry, data, success; `fence`;
`fenced` lac, lafr; `read` entry; `answer` entry, data; and of a fence or a read `refused` kind."""
NO_DATA, NO_OP = "", "no-op"
READS = ("read", "answer")


class TermsClient(NamedTuple):
    """One client; the fields that a world without ensemble changes needs. `reads_from`: its recovery looks for the end."""

    version: int | None = None
    status: str = ""
    term: int = 0
    pending: tuple[tuple[int, str], ...] = ()
    lap: int = 0
    lac: int = 0
    lafr: int = 0
    confirmed: tuple[int, ...] = ()
    fenced: int = 0
    reads_from: bool = False
    recovery_lac: int = 0
    recovery_lafr: int = 0
    reading: int | None = None
    responses: frozenset[tuple[int, str]] = frozenset()
    phase: int = 0
    truncates: int | None = None


class TermsState(NamedTuple):
    """One state: metadata, bookies, clients, every message that was ever sent with what became of it, the values."""

    status: str
    version: int
    term: int
    end: int
    entries: tuple[tuple[str, ...], ...]
    terms: tuple[int, ...]
    lacs: tuple[int, ...]
    lafrs: tuple[int, ...]
    clients: tuple[TermsClient, ...]
    messages: frozenset[tuple[Message, int]]
    sent: int = 0
    acked: frozenset[str] = frozenset()


Moves: TypeAlias = Iterator[tuple[str, TermsState]]


class TermsWorld:
    """The specification's `Init` and `Next`.

    Args:
        values: how many values are written, by whichever client.
        slips: of the specification, "S3" and "S4".
    """

    def __init__(
        self,
        bookies: int = 2,
        clients: int = 2,
        ack_quorum: int = 1,
        values: int = 1,
        slips: Collection[str] = (),
    ) -> None:
        self.bookies, self.clients, self.ack_quorum, self.values = bookies, clients, ack_quorum, values
        self.coverage = bookies - ack_quorum + 1
        self.ids = values + clients - 1
        self.slips = frozenset(slips)

    def initial(self) -> TermsState:
        """`Init`."""
        client = TermsClient(confirmed=(0,) * self.ids)
        none, nothing = (0,) * self.bookies, ((NO_DATA,) * self.ids,) * self.bookies
        return TermsState("", 0, 0, 0, nothing, none, none, none, (client,) * self.clients, frozenset())

    def successors(self, state: TermsState) -> list[tuple[str, TermsState]]:
        """`Next`: each action, each choice in it."""
        sent = dict(state.messages)
        found = [*self._bookie_actions(state, sent)]
        for who, client in enumerate(state.clients):
            found += self._withdraws(state, sent, who, client)
            found += self._writer_actions(state, sent, who, client)
            found += self._recovery_actions(state, sent, who, client)
        return found

    # --- messages ----------------------------------------------------------------------------------------------------

    def _send(
        self,
        state: TermsState,
        sent: dict[Message, int],
        messages: list[Message],
        but: Message | None = None,
    ) -> Iterator[TermsState]:
        """Each message is delivered or lost; none may have been sent before. `but` is processed by it."""
        if any(message in sent for message in messages):
            return
        kept = state.messages if but is None else self._processed(state, but).messages
        for fates in product((LOST, DELIVERED), repeat=len(messages)):
            yield state._replace(messages=kept.union(zip(messages, fates, strict=True)))

    @staticmethod
    def _processed(state: TermsState, message: Message) -> TermsState:
        return state._replace(messages=state.messages - {(message, DELIVERED)} | {(message, PROCESSED)})

    @staticmethod
    def _earliest(sent: dict[Message, int], message: Message) -> bool:
        return not any(
            count == DELIVERED and other[:4] == message[:4] and other[4] < message[4]
            for other, count in sent.items()
        )

    @staticmethod
    def _with(state: TermsState, who: int, client: TermsClient) -> TermsState:
        return state._replace(clients=(*state.clients[:who], client, *state.clients[who + 1 :]))

    # --- bookies -----------------------------------------------------------------------------------------------------

    def _bookie_actions(self, state: TermsState, sent: dict[Message, int]) -> Moves:
        for message, count in sent.items():
            kind, bookie, client, term = message[:4]
            if count != DELIVERED or kind not in ("add", "fence", "read"):
                continue
            if kind == "add" and not self._earliest(sent, message):
                continue
            after, answer = state, ("refused", bookie, client, term, kind)
            if state.terms[bookie] <= term:
                after, answer = self._taken(state, message)
            elif kind == "add":
                answer = ("added", bookie, client, term, *message[4:6], False)
            yield from ((f"bookie {kind}", each) for each in self._send(after, sent, [answer], message))

    def _taken(self, state: TermsState, message: Message) -> tuple[TermsState, Message]:
        """A bookie takes a request of its term, or of a higher one."""
        kind, bookie, client, term = message[:4]
        terms, held = [*state.terms], [*state.entries[bookie]]
        terms[bookie] = term
        after = state._replace(terms=tuple(terms))
        if kind == "fence":
            return after, ("fenced", bookie, client, term, state.lacs[bookie], state.lafrs[bookie])
        entry = message[4]
        if kind == "read":
            data = held[entry - 1] if entry <= self.ids else NO_DATA
            return after, ("answer", bookie, client, term, entry, data)
        data, lac, lafr, truncates = message[5:]
        held[entry - 1] = data
        if truncates:
            held[entry:] = [NO_DATA] * (self.ids - entry)
        entries, lacs, lafrs = [*state.entries], [*state.lacs], [*state.lafrs]
        entries[bookie] = tuple(held)
        lacs[bookie], lafrs[bookie] = max(lac, lacs[bookie]), max(lafr, lafrs[bookie])
        after = after._replace(entries=tuple(entries), lacs=tuple(lacs), lafrs=tuple(lafrs))
        return after, ("added", bookie, client, term, entry, data, True)

    # --- clients of any kind -------------------------------------------------------------------------------------------

    def _withdraws(self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient) -> Moves:
        withdrawn = self._with(state, who, client._replace(status="withdrawn", version=None))
        for message, count in sent.items():
            if count != DELIVERED or message[2] != who:
                continue
            refused = message[0] == "added" and not message[6] and self._earliest(sent, message)
            if refused or message[0] == "refused":
                yield "withdraw", self._processed(withdrawn, message)

    def _added(self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient) -> Moves:
        for message, count in sent.items():
            if count != DELIVERED or message[0] != "added" or message[2] != who:
                continue
            bookie, entry, data, success = message[1], *message[4:]
            if not success or not self._earliest(sent, message):
                continue
            confirmed = [*client.confirmed]
            confirmed[entry - 1] |= 1 << bookie
            lac = self._contiguous(client.lac, client.lap, confirmed, self.ack_quorum)
            base = client.lac if "S3" in self.slips else client.lafr
            lafr = self._contiguous(base, client.lap, confirmed, self.bookies)
            after = client._replace(
                confirmed=tuple(confirmed),
                lac=max(lac, client.lac),
                lafr=max(lafr, client.lafr),
                pending=tuple(each for each in client.pending if each[0] > lafr),
            )
            acked = state.acked | {data} if client.status == "open" and lac >= entry else state.acked
            yield "added", self._processed(self._with(state, who, after)._replace(acked=acked), message)

    @staticmethod
    def _contiguous(last: int, lap: int, confirmed: list[int], quorum: int) -> int:
        """The highest entry after `last` that so many bookies have confirmed, with all between."""
        while last < lap and confirmed[last].bit_count() >= quorum:
            last += 1
        return last

    def _adds(self, client: TermsClient, who: int, entry: int, data: str) -> list[Message]:
        recovers = client.status == "recovery"
        lac = client.recovery_lac if recovers else client.lac
        lafr = client.recovery_lafr if recovers else client.lafr
        truncates = recovers and client.truncates == entry
        return [
            ("add", bookie, who, client.term, entry, data, lac, lafr, truncates)
            for bookie in range(self.bookies)
        ]

    # --- the writer ----------------------------------------------------------------------------------------------------

    def _writer_actions(
        self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient
    ) -> Moves:
        if not state.status and client.version is None:
            created = client._replace(status="open", version=1, term=1)
            yield "create", self._with(state._replace(status="open", version=1, term=1), who, created)
        if client.status != "open":
            return
        if client.lap == client.lac and state.sent < self.values:
            entry, data = client.lap + 1, f"v{state.sent + 1}"
            pushed = client._replace(lap=entry, pending=(*client.pending, (entry, data)))
            after = self._with(state._replace(sent=state.sent + 1), who, pushed)
            yield from (
                ("send", each) for each in self._send(after, sent, self._adds(client, who, entry, data))
            )
        yield from self._added(state, sent, who, client)
        if (state.status, state.term, state.version) != ("open", client.term, client.version):
            yield "close fails", self._with(state, who, client._replace(status="withdrawn", version=None))
        elif not client.pending:
            version = state.version + 1
            record = state._replace(status="closed", end=client.lac, version=version)
            yield "close", self._with(record, who, client._replace(version=version, status="closed"))

    # --- take-overs ------------------------------------------------------------------------------------------------------

    def _recovery_actions(
        self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient
    ) -> Moves:
        if not client.status and state.status in ("open", "recovery"):
            version, term = state.version + 1, state.term + 1
            started = client._replace(status="recovery", version=version, term=term, phase=1, reads_from=True)
            record = state._replace(status="recovery", version=version, term=term)
            fences: list[Message] = [("fence", bookie, who, term) for bookie in range(self.bookies)]
            yield from (
                ("start", each) for each in self._send(self._with(record, who, started), sent, fences)
            )
        if client.phase == 1:  # a client that has withdrawn takes what is said to it as well
            yield from self._fenced(state, sent, who, client)
        if client.status != "recovery":
            return
        yield from self._reads(state, sent, who, client)
        yield from self._added(state, sent, who, client)
        if client.phase == 2:
            yield from self._answers(state, sent, who, client)
            yield from self._writes_back(state, sent, who, client)
            current = state.status == "recovery" and client.version == state.version
            if current and client.truncates is not None and not client.pending:
                opened = client._replace(
                    status="open", version=state.version + 1, truncates=None, phase=0, recovery_lac=0, recovery_lafr=0
                )  # fmt: skip
                record = state._replace(status="open", version=state.version + 1)
                yield "open", self._with(record, who, opened)

    def _fenced(self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient) -> Moves:
        for message, count in sent.items():
            if count == DELIVERED and message[0] == "fenced" and message[2:4] == (who, client.term):
                lac, lafr = message[4:]
                after = client._replace(
                    fenced=client.fenced | 1 << message[1],
                    recovery_lac=max(lac, client.recovery_lac),
                    recovery_lafr=max(lafr, client.recovery_lafr),
                    lap=max(lafr, client.lap),
                )
                yield "fenced", self._processed(self._with(state, who, after), message)

    def _reads(self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient) -> Moves:
        begins = client.phase == 1 and client.fenced.bit_count() >= self.coverage
        if not begins and (client.phase != 2 or client.truncates is not None or client.reading is not None):
            return
        entry = client.lap + 1
        after = client._replace(phase=2, reading=entry, fenced=0)
        if begins and "S4" not in self.slips:
            after = after._replace(lac=client.recovery_lac, lafr=client.recovery_lafr)
        reads: list[Message] = [("read", bookie, who, client.term, entry) for bookie in range(self.bookies)]
        yield from (("read", each) for each in self._send(self._with(state, who, after), sent, reads))

    def _answers(self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient) -> Moves:
        own = (who, client.term)
        for message, count in sent.items():
            if count != DELIVERED or message[0] != "answer" or message[2:4] != own:
                continue
            if message[4] != client.reading:
                continue
            responses = client.responses | {(message[1], message[5])}
            after = self._verdict(sent, own, client, responses, message[5])
            if after is None:
                after = client._replace(responses=responses)
            elif any(
                count == DELIVERED and other[0] in READS and other[2:4] == own and other != message
                for other, count in sent.items()
            ):
                continue  # S5: two equations for the messages, which agree only when no other read is outstanding
            yield "answer", self._processed(self._with(state, who, after), message)

    def _verdict(
        self,
        sent: dict[Message, int],
        own: tuple[int, int],
        client: TermsClient,
        responses: frozenset[tuple[int, str]],
        data: str,
    ) -> TermsClient | None:
        """The client after its read was judged, None while it needs more."""
        done, entry = client._replace(reading=None, responses=frozenset()), client.lap + 1
        if any(found for _, found in responses):
            return done._replace(lap=entry, pending=(*client.pending, (entry, data)))
        if len(responses) >= self.coverage:
            pending = (*client.pending, (entry, NO_OP))
            return done._replace(reads_from=False, lap=entry, truncates=entry, pending=pending)
        silent = {
            message[1]
            for message, count in sent.items()
            if count == LOST and message[0] in READS and message[2:4] == own
        }
        if len(responses) + len(silent) == self.bookies:
            return done._replace(status="aborted", reads_from=False)
        return None

    def _writes_back(
        self, state: TermsState, sent: dict[Message, int], who: int, client: TermsClient
    ) -> Moves:
        own = (who, client.term)
        written = {message[4:6] for message in sent if message[0] == "add" and message[2:4] == own}
        waiting = [each for each in client.pending if each not in written]
        if waiting:
            adds = self._adds(client, who, *min(waiting))
            yield from (("write back", each) for each in self._send(state, sent, adds))

    # --- what must hold --------------------------------------------------------------------------------------------------

    def violation(self, state: TermsState) -> Violation | None:
        """The specification's invariants."""
        for client in state.clients:
            if state.status == "closed" and client.status and client.lac > state.end:
                return Violation("I1", f"entry {client.lac} was acknowledged, the ledger ends at {state.end}")
            if client.status in ("open", "closed"):
                for entry in range(client.lac):
                    if not any(held[entry] for held in state.entries):
                        return Violation("U3", f"entry {entry + 1} was acknowledged and no bookie holds it")
        for value in state.acked:
            if not any(value in held for held in state.entries):
                return Violation("U3", f"{value} was acknowledged and no bookie holds it")
        return self._of_bookies(state)

    def _of_bookies(self, state: TermsState) -> Violation | None:
        for lac in state.lacs:
            if lac and sum(bool(held[lac - 1]) for held in state.entries) < self.ack_quorum:
                return Violation("I5", f"a bookie says that entry {lac} is confirmed, and too few hold it")
        for entry in range(state.end if state.status == "closed" else 0):
            if not all(held[entry] for held in state.entries):
                return Violation("G2", f"the ledger is closed at {state.end}, and a bookie lacks {entry + 1}")
        for entry in range(max(client.lac for client in state.clients)):
            committed = {
                held[entry]
                for held, lac in zip(state.entries, state.lacs, strict=True)
                if lac > entry and held[entry]
            }
            if len(committed) > 1:
                return Violation("U2", f"two bookies say that entry {entry + 1} is confirmed, and differ")
        return None
