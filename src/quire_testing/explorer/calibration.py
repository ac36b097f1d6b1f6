"""The explorer's own check: the public classic specification, explored by it, gives the counts that TLC gives.

This is a transcription, action by action, of `BookKeeperProtocol.tla` (Vanlightly/bookkeeper-tlaplus, March 2024) for as
many bookies as the write quorum. There no second ensemble exists, so the actions of an ensemble change are never
enabled and are left out. Its slips are kept: a recovery read is judged only when no other read of that client is
outstanding, a bookie's LAC is the message's, every message is lost or delivered when it is sent.

| two bookies, two clients, one entry | distinct | generated | depth |
| --- | --- | --- | --- |
| Qw 2, Qa 1 | 285,773 | 982,019 | 28 |
| Qw 2, Qa 2 | 1,795,149 | 6,965,623 (here 6,941,623) | 27 |

Source: BookKeeper TLA+ specification; docs/testing-coverage.md, "The slips of the sources".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from quire_testing.explorer.invariants import Violation

LOST, PROCESSED, DELIVERED = -1, 0, 1
Message: TypeAlias = tuple[Any, ...]
"""(kind, bookie, client, ...): `add` entry, lac, recovery; `added` entry, recovery, success; `fence`; `fenced` lac;
`read` entry; `answer` entry, found."""


class ClassicClient(NamedTuple):
    """One client; the fields that a world without ensemble changes needs. `reads_from`: its recovery looks for the end."""

    version: int | None = None
    status: str = ""
    pending: tuple[int, ...] = ()
    lap: int = 0
    lac: int = 0
    confirmed: tuple[int, ...] = ()
    fenced: int = 0
    reads_from: bool = False
    reading: int | None = None
    responses: frozenset[tuple[int, bool]] = frozenset()
    phase: int = 0
    last: int | None = None
    lafr: int = 0


class Classic(NamedTuple):
    """One state: metadata, bookies, clients, and every message that was ever sent with what became of it."""

    status: str
    version: int
    end: int
    entries: tuple[int, ...]
    fenced: int
    lacs: tuple[int, ...]
    clients: tuple[ClassicClient, ...]
    messages: frozenset[tuple[Message, int]]
    lafrs: tuple[int, ...] = ()


class ClassicWorld:
    """The specification's `Init` and `Next`.

    Args:
        ack_quorum: Qa; the write quorum is the number of bookies.
        entries: the specification's SendLimit, with one add in flight.
        mended: slips that are left out, of "S2", "S5" and "S6" ("The slips of the sources").
    """

    def __init__(
        self,
        bookies: int = 2,
        clients: int = 2,
        ack_quorum: int = 1,
        entries: int = 1,
        mended: Collection[str] = (),
    ) -> None:
        self.bookies = bookies
        self.clients = clients
        self.ack_quorum = ack_quorum
        self.entries = entries
        self.coverage = bookies - ack_quorum + 1
        self.mended = frozenset(mended)

    def initial(self) -> Classic:
        """`Init`."""
        client = ClassicClient(confirmed=(0,) * self.entries)
        nothing = (0,) * self.bookies
        return Classic("", 0, 0, nothing, 0, nothing, (client,) * self.clients, frozenset())

    def successors(self, state: Classic) -> list[tuple[str, Classic]]:
        """`Next`: each action, each choice in it."""
        sent = dict(state.messages)
        found = [*self._bookie_actions(state, sent)]
        for who, client in enumerate(state.clients):
            found += self._writer_actions(state, sent, who, client)
            found += self._recovery_actions(state, sent, who, client)
        return found

    # --- messages ----------------------------------------------------------------------------------------------------

    def _send(
        self, state: Classic, sent: dict[Message, int], messages: list[Message], but: Message | None = None
    ) -> Iterator[Classic]:
        """Each message is delivered or lost; none may have been sent before. `but` is processed by it."""
        if any(message in sent for message in messages):
            return
        kept = state.messages
        if but is not None:
            kept = kept - {(but, DELIVERED)} | {(but, PROCESSED)}
        for fates in product((LOST, DELIVERED), repeat=len(messages)):
            yield state._replace(messages=kept.union(zip(messages, fates, strict=True)))

    def _earliest(self, sent: dict[Message, int], message: Message) -> bool:
        kind, bookie, client, entry = message[:4]
        index = 5 if kind == "add" else 4
        return not any(
            count == DELIVERED
            and other[:3] == (kind, bookie, client)
            and other[index] == message[index]
            and other[3] < entry
            for other, count in sent.items()
        )

    # --- bookies -----------------------------------------------------------------------------------------------------

    def _bookie_actions(self, state: Classic, sent: dict[Message, int]) -> Iterator[tuple[str, Classic]]:
        for message, count in sent.items():
            if count != DELIVERED:
                continue
            kind, bookie, client = message[:3]
            if kind == "add" and self._earliest(sent, message):
                entry, recovery = message[3], message[5]
                refused = state.fenced >> bookie & 1 and not recovery
                after = state if refused else self._stored(state, bookie, message)
                answer: Message = ("added", bookie, client, entry, recovery, not refused)
                yield from ((f"bookie {kind}", each) for each in self._send(after, sent, [answer], message))
            elif kind == "fence":
                after = state._replace(fenced=state.fenced | 1 << bookie)
                answer = ("fenced", bookie, client, self._lac_reported(state, bookie))
                yield from ((f"bookie {kind}", each) for each in self._send(after, sent, [answer], message))
            elif kind == "read":
                after = state._replace(fenced=state.fenced | 1 << bookie)
                answer = ("answer", bookie, client, message[3], bool(state.entries[bookie] >> message[3] & 1))
                yield from ((f"bookie {kind}", each) for each in self._send(after, sent, [answer], message))

    def _stored(self, state: Classic, bookie: int, message: Message) -> Classic:
        """A bookie takes an add."""
        entries, lacs = [*state.entries], [*state.lacs]
        entry, lac = message[3:5]
        entries[bookie] |= 1 << entry
        lacs[bookie] = max(lac, lacs[bookie]) if "S6" in self.mended else lac
        return state._replace(entries=tuple(entries), lacs=tuple(lacs))

    def _lac_reported(self, state: Classic, bookie: int) -> int:
        """What a bookie says of the ledger when it is fenced."""
        return state.lacs[bookie]

    # --- the writer ----------------------------------------------------------------------------------------------------

    def _writer_actions(
        self, state: Classic, sent: dict[Message, int], who: int, client: ClassicClient
    ) -> Iterator[tuple[str, Classic]]:
        if not state.status and client.version is None:
            yield (
                "create",
                self._with(
                    state._replace(status="open", version=1), who, client._replace(status="open", version=1)
                ),
            )
        if client.status != "open":
            return
        if client.lap == client.lac and client.lap < self.entries:
            entry = client.lap + 1
            after = self._with(state, who, client._replace(lap=entry, pending=(*client.pending, entry)))
            adds = [self._add(client, bookie, who, entry, recovery=False) for bookie in range(self.bookies)]
            yield from (("send", each) for each in self._send(after, sent, adds))
        yield from self._added(state, sent, who, client, recovery=False)
        withdrawn = client._replace(status="withdrawn")
        for message, count in sent.items():
            if count != DELIVERED or message[0] != "added" or message[2] != who:
                continue
            if not message[4] and not message[5] and self._earliest(sent, message):
                yield "fenced", self._processed(self._with(state, who, withdrawn), message)
        if state.status == "open" and client.version == state.version and self._may_close(client):
            closed = client._replace(version=client.version + 1, status="closed")
            record = state._replace(status="closed", end=client.lac, version=state.version + 1)
            yield "close", self._with(record, who, closed)
        if state.status != "open":
            yield "withdraw", self._with(state, who, withdrawn._replace(version=None))

    def _added(
        self, state: Classic, sent: dict[Message, int], who: int, client: ClassicClient, *, recovery: bool
    ) -> Iterator[tuple[str, Classic]]:
        for message, count in sent.items():
            if count != DELIVERED or message[0] != "added" or message[2] != who:
                continue
            _, bookie, _, entry, by_recovery, success = message
            if by_recovery != recovery or not success or not self._earliest(sent, message):
                continue
            confirmed = [*client.confirmed]
            confirmed[entry - 1] |= 1 << bookie
            after = self._counted(client, tuple(confirmed))
            yield "added", self._processed(self._with(state, who, after), message)

    def _add(self, client: ClassicClient, bookie: int, who: int, entry: int, *, recovery: bool) -> Message:
        return ("add", bookie, who, entry, client.lac, recovery)

    def _may_close(self, _: ClassicClient) -> bool:
        """Whether the writer may close its ledger."""
        return True

    def _counted(self, client: ClassicClient, confirmed: tuple[int, ...]) -> ClassicClient:
        """What one more response means to a client."""
        lac = client.lac if "S2" in self.mended else 0
        while lac < self.entries and confirmed[lac].bit_count() >= self.ack_quorum:
            lac += 1
        pending = tuple(
            each for each in client.pending if confirmed[each - 1].bit_count() < self.ack_quorum or each > lac
        )
        return client._replace(confirmed=confirmed, lac=max(lac, client.lac), pending=pending)

    # --- recoverers ------------------------------------------------------------------------------------------------------

    def _recovery_actions(
        self, state: Classic, sent: dict[Message, int], who: int, client: ClassicClient
    ) -> Iterator[tuple[str, Classic]]:
        if not client.status and state.status in ("open", "recovery"):
            version = state.version + 1
            started = client._replace(status="recovery", version=version, phase=1, reads_from=True)
            record = self._with(state._replace(status="recovery", version=version), who, started)
            fences = [("fence", bookie, who) for bookie in range(self.bookies)]
            yield from (("start", each) for each in self._send(record, sent, fences))
        if client.phase == 1:
            yield from self._fenced(state, sent, who, client)
        if client.status != "recovery":
            return
        if (client.phase == 2 and client.last is None and client.reading is None) or (
            client.phase == 1 and client.fenced.bit_count() >= self.coverage
        ):
            entry = client.lap + 1
            after = self._with(state, who, client._replace(phase=2, reading=entry, fenced=0))
            reads = [("read", bookie, who, entry) for bookie in range(self.bookies)]
            yield from (("read", each) for each in self._send(after, sent, reads))
        yield from self._added(state, sent, who, client, recovery=True)
        if client.phase == 2:
            yield from self._answers(state, sent, who, client)
            yield from self._writes_back(state, sent, who, client)
            current = state.status == "recovery" and client.version == state.version
            if current and client.last is not None and not client.pending:
                closed = client._replace(status="closed", version=state.version + 1)
                record = state._replace(status="closed", end=client.last, version=state.version + 1)
                yield "close", self._with(record, who, closed)

    def _fenced(
        self, state: Classic, sent: dict[Message, int], who: int, client: ClassicClient
    ) -> Iterator[tuple[str, Classic]]:
        for message, count in sent.items():
            if count == DELIVERED and message[0] == "fenced" and message[2] == who:
                after = self._begins_at(client._replace(fenced=client.fenced | 1 << message[1]), message[3])
                yield "fenced", self._processed(self._with(state, who, after), message)

    def _begins_at(self, client: ClassicClient, lac: int) -> ClassicClient:
        """What a bookie reported of the ledger means to a recoverer."""
        return client._replace(lac=max(lac, client.lac), lap=max(lac, client.lap))

    def _answers(
        self, state: Classic, sent: dict[Message, int], who: int, client: ClassicClient
    ) -> Iterator[tuple[str, Classic]]:
        for message, count in sent.items():
            if (
                count != DELIVERED
                or message[0] != "answer"
                or message[2] != who
                or message[3] != client.reading
            ):
                continue
            responses = client.responses | {(message[1], message[4])}
            after = self._verdict(sent, who, client, responses)
            if after is None:
                after = client._replace(responses=responses)
                yield "answer", self._processed(self._with(state, who, after), message)
                continue
            others = [
                other
                for other, count in sent.items()
                if other != message
                and count == DELIVERED
                and other[0] in ("read", "answer")
                and other[2] == who
            ]
            if others and "S5" not in self.mended:
                continue  # S5: two equations for the messages, which agree only when no other read is outstanding
            judged = self._processed(self._with(state, who, after), message)
            for other in others:  # their responses are ignored from here on
                judged = self._processed(judged, other)
            yield "answer", judged

    def _verdict(
        self,
        sent: dict[Message, int],
        who: int,
        client: ClassicClient,
        responses: frozenset[tuple[int, bool]],
    ) -> ClassicClient | None:
        """The client after its read was judged, None while it needs more."""
        done = client._replace(reading=None, responses=frozenset())
        if any(found for _, found in responses):
            return done._replace(lap=client.lap + 1, pending=(*client.pending, client.lap + 1))
        if sum(not found for _, found in responses) >= self.coverage:
            assert client.reading is not None
            return done._replace(reads_from=False, last=client.reading - 1)
        silent = {
            message[1]
            for message, count in sent.items()
            if count == LOST and message[0] in ("read", "answer") and message[2] == who
        }
        if len(responses) + len(silent) == self.bookies:
            return done._replace(status="aborted", reads_from=False)
        return None

    def _writes_back(
        self, state: Classic, sent: dict[Message, int], who: int, client: ClassicClient
    ) -> Iterator[tuple[str, Classic]]:
        written = {message[3] for message in sent if message[0] == "add" and message[2] == who and message[5]}
        waiting = [entry for entry in client.pending if entry not in written]
        if waiting:
            adds = [
                self._add(client, bookie, who, min(waiting), recovery=True) for bookie in range(self.bookies)
            ]
            yield from (("write back", each) for each in self._send(state, sent, adds))

    # --- pieces ------------------------------------------------------------------------------------------------------------

    def _with(self, state: Classic, who: int, client: ClassicClient) -> Classic:
        clients = (*state.clients[:who], client, *state.clients[who + 1 :])
        return state._replace(clients=clients)

    def _processed(self, state: Classic, message: Message) -> Classic:
        return state._replace(messages=state.messages - {(message, DELIVERED)} | {(message, PROCESSED)})

    def violation(self, state: Classic) -> Violation | None:
        """The specification's own invariants: no divergence, and acknowledged entries are readable."""
        for client in state.clients:
            if (
                state.status == "closed"
                and client.status in ("open", "closed", "withdrawn")
                and client.lac > state.end
            ):
                return Violation("I1", f"entry {client.lac} was acknowledged, the ledger ends at {state.end}")
            if client.status in ("open", "closed"):
                for entry in range(1, client.lac + 1):
                    if not any(held >> entry & 1 for held in state.entries):
                        return Violation("I2", f"entry {entry} was acknowledged and no bookie holds it")
        return None
