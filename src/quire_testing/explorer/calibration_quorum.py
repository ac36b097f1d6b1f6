"""The explorer's own check, again: the public specification of guaranteed write quorums.

A transcription of what `BookKeeperProtocolGuaranteedWriteQuorum.tla` (Vanlightly/bookkeeper-tlaplus, December 2021) does
otherwise than the classic one, for as many bookies as the write quorum: there is no second ensemble, so none is replaced
or pinned.

| two bookies, two clients, one entry | distinct | depth |
| --- | --- | --- |
| Qw 2, Qa 1 | 284,861 | 28 |

The specification of unbounded ledgers counts the LAFR from the LAC (S3); `slips` has it here, and an entry that callers were
reported then leaves the pending ones below its write quorum.

Source: BookKeeper TLA+ specifications; docs/testing-coverage.md, "The slips of the sources".
"""

from __future__ import annotations

from collections.abc import Collection

from quire_testing.explorer.calibration import Classic, ClassicClient, ClassicWorld, Message
from quire_testing.explorer.invariants import Violation


class GuaranteedWorld(ClassicWorld):
    """The specification's `Init` and `Next`.

    Args:
        slips: of the specification of unbounded ledgers, "S3" or nothing.
    """

    def __init__(
        self,
        bookies: int = 2,
        clients: int = 2,
        ack_quorum: int = 1,
        entries: int = 1,
        slips: Collection[str] = (),
    ) -> None:
        super().__init__(bookies, clients, ack_quorum, entries, mended=("S6",))
        self.slips = frozenset(slips)

    def initial(self) -> Classic:
        """`Init`."""
        return super().initial()._replace(lafrs=(0,) * self.bookies)

    def _add(self, client: ClassicClient, bookie: int, who: int, entry: int, *, recovery: bool) -> Message:
        return (*super()._add(client, bookie, who, entry, recovery=recovery), client.lafr)

    def _stored(self, state: Classic, bookie: int, message: Message) -> Classic:
        lafrs = [*state.lafrs]
        lafrs[bookie] = max(lafrs[bookie], message[6])
        return super()._stored(state, bookie, message)._replace(lafrs=tuple(lafrs))

    def _lac_reported(self, state: Classic, bookie: int) -> int:
        return state.lafrs[bookie]

    def _begins_at(self, client: ClassicClient, lac: int) -> ClassicClient:
        return super()._begins_at(client, lac)._replace(lafr=max(lac, client.lafr))

    def _may_close(self, client: ClassicClient) -> bool:
        """Change 4: "the client can only close a ledger once all pending add ops are completed"."""
        return not client.pending

    def _counted(self, client: ClassicClient, confirmed: tuple[int, ...]) -> ClassicClient:
        """Change 1: "Only remove an entries when they have reached WQ and their entire prefix has also reached WQ"."""
        lac = self._contiguous(confirmed, self.ack_quorum)
        lafr = self._contiguous(confirmed, self.bookies)
        if "S3" in self.slips:
            above = range(client.lac + 1, self.entries + 1)
            held = [each for each in above if confirmed[each - 1].bit_count() >= self.bookies]
            lafr = max(held, default=client.lac)
        return client._replace(
            confirmed=confirmed,
            lac=max(lac, client.lac),
            lafr=max(lafr, client.lafr),
            pending=tuple(each for each in client.pending if each > lafr),
        )

    def _contiguous(self, confirmed: tuple[int, ...], quorum: int) -> int:
        """The highest entry that so many bookies have confirmed, with all before it."""
        last = 0
        while last < self.entries and confirmed[last].bit_count() >= quorum:
            last += 1
        return last

    def violation(self, state: Classic) -> Violation | None:
        """No divergence, acknowledged entries are readable, no dirty LAC; a closed ledger is on its write quorum."""
        if state.status == "closed":
            for client in state.clients:
                if client.status and client.lac > state.end:
                    return Violation(
                        "I1", f"entry {client.lac} was acknowledged, the ledger ends at {state.end}"
                    )
            for entry in range(1, state.end + 1):
                if not all(held >> entry & 1 for held in state.entries):
                    return Violation(
                        "G2", f"the ledger is closed at {state.end}, and a bookie lacks entry {entry}"
                    )
        for lac in state.lacs:
            if lac and sum(held >> lac & 1 for held in state.entries) < self.ack_quorum:
                return Violation("I5", f"a bookie says that entry {lac} is confirmed, and too few hold it")
        return super().violation(state)
