"""The mutants of streams: one fix of terms and of take-overs taken out of each.

Source: docs/protocol/streams.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.rules import RULES
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.repair.rereplication import RepairMachine
from quire_testing.explorer.ledger_mutants import CLOSES_AT_ONCE
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.stream_parts import StreamConfiguration
from quire_testing.explorer.stream_world import StreamRepairs
from quire_testing.explorer.switches import SHIPPED

READ_BESIDE: Final = StreamConfiguration(readers=1, explicit_lac=True)


LEFT_BEHIND: Final = (
    "client 0: append 1",
    "b1: takes add 0..0 lac=-1 in term 1 from client 0",
    "client 1: takes over with OPEN term 1, ranges 1>0; 0:[b0 b1]",
    "store: takes v0: IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1] from client 1",
    "client 1: hears written v1",
    "b0: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b0",
    "b0: takes fence, read 0..0 of term 1 in term 2 from client 1",
    "client 1: hears OK to fence, read 0..0 of term 1 in term 2: has nothing, conclusive through 0 from b0",
    "store: takes v1: OPEN term 2, ranges 1>0 2>0; 0:[b0 b1] from client 1",
    "client 1: hears written v2",
    "client 1: append 1",
    "b0: takes add 0..0 lac=-1 in term 2 from client 1",
    "client 1: lost b1",
    "store: takes v2: OPEN term 2, ranges 1>0 2>0; 0:[b0 b2] from client 1",
    "client 1: hears written v3",
    "b2: takes add 0..0 lac=-1 in term 2 from client 1",
    "client 1: hears OK to add 0..0 lac=-1 in term 2 from b0",
    "client 1: hears OK to add 0..0 lac=-1 in term 2 from b2",
    "client 1: append 1",
    "client 1: lost b2",
    "store: takes v3: OPEN term 2, ranges 1>0 2>0; 0:[b0 b2] 1:[b0 b1] from client 1",
    "client 1: hears written v4",
)
"""Entry 0 of term 2 is acknowledged in a fragment that is decided; the bookie that it does not name has that of term 1."""


STREAM_MUTANTS: Final[tuple[Mutant[StreamConfiguration], ...]] = (
    with_rules(
        "X23",
        "a bookie takes requests of a lower term",
        StreamConfiguration(),
        "U2",
        term_answer=lambda known, term, *, named: Answer.OK,
    ),
    with_rules(
        "X24",
        "fences and recovery reads do not raise a bookie's term",
        StreamConfiguration(),
        "U2",
        Patch(
            BookieLedgerMachine.raise_term,
            "answer = self._admit(key, token, digest_type, term) if key else Answer.UNAUTHORISED",
            "return _AT_ONCE[self.may_read(key, token)]",
        ),
    ),
    with_rules(
        "X33",
        "a take-over keeps the term",
        StreamConfiguration(),
        "U5",
        next_term=lambda term: term,
    ),
    with_rules(
        "own-term",
        "a record in one's own term is taken for one's own",
        StreamConfiguration(1, 1, 1, 1, entries=0, clients=2, take_overs=2, lost_swaps=1),
        "U5",
        is_own_take_over=lambda record, term, owner: record.term == term,
    ),
    with_rules(
        "X46",
        "a LAC of a newer term is used with an old record",
        READ_BESIDE,
        "I11",
        may_use_lac=lambda lac_term, record: True,
    ),
    with_rules(
        "X58",
        "a LAC's term is compared with the record's term, not with its ranges",
        READ_BESIDE,
        "I11",
        may_use_lac=lambda lac_term, record: lac_term <= record.term,
    ),
    with_rules(
        "X47",
        "a writer changes the record in whatever term it is",
        StreamConfiguration(2, 1, 1, 1, timeouts=1),
        "U5",
        writer_may_change=lambda record, term: record.state is LedgerState.OPEN,
    ),
    with_rules(
        "X48",
        "a bookie in limbo trusts its own term",
        StreamConfiguration(losses=1),
        "U3",
        Patch(
            BookieLedgerMachine._term_is_unknown, "not self.fence_known and self._fence_is_unknown()", "False"
        ),
    ),
    with_rules(
        "X49",
        "a take-over opens before its adds are on their ack quorum",
        StreamConfiguration(window=2),
        "U8",
        CLOSES_AT_ONCE,
    ),
    with_rules(
        "listed-origin",
        "a repair counts what a bookie lists, whatever term it is of",
        StreamConfiguration(3, entries=2, timeouts=2, repairers=1),
        "RR2",
        begin=LEFT_BEHIND,
        counts_as_listed=lambda origin_term, named: True,
    ),
)

THREE_WRITE_TWO: Final = StreamConfiguration(3, 3, 3, 2, entries=2, fencing=True)
TWO_DIRTY: Final = (
    "client 0: append 1",
    "client 0: append 1",
    "b0: takes add 0..0 lac=-1 in term 1 from client 0",
    "b0: takes add 1..1 lac=-1 in term 1 from client 0",
    "client 1: takes over with OPEN term 1, ranges 1>0; 0:[b0 b1 b2]",
    "store: takes v0: IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1 b2] from client 1",
    "client 1: hears written v1",
    "b1: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b1",
    "b2: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b2",
    "b1: takes fence, read 0..0 of term 0 in term 2 from client 1",
    "client 1: hears OK to fence, read 0..0 of term 0 in term 2: has nothing, conclusive through 0 from b1",
)
"""b0 alone has two entries of the first writer; the second client is about to find that they are not recoverable."""
LEFT_OUT: Final = (
    *TWO_DIRTY,
    "b2: takes fence, read 0..0 of term 0 in term 2 from client 1",
    "client 1: hears OK to fence, read 0..0 of term 0 in term 2: has nothing, conclusive through 0 from b2",
    "b1: takes no-op 0, truncate 0 lac=-1 in term 2 from client 1",
    "client 1: hears OK to no-op 0, truncate 0 lac=-1 in term 2 from b1",
    "b2: takes no-op 0, truncate 0 lac=-1 in term 2 from client 1",
    "client 1: hears OK to no-op 0, truncate 0 lac=-1 in term 2 from b2",
    "client 1: gives up no-op 0, truncate 0 lac=-1 in term 2 at b0",
    "b3: takes no-op 0, truncate 0 lac=-1 in term 2 from client 1",
    "client 1: hears OK to no-op 0, truncate 0 lac=-1 in term 2 from b3",
    "store: takes v1: OPEN term 2, ranges 1>0 2>0; 0:[b3 b1 b2] from client 1",
    "client 1: hears written v2",
    "client 1: append 1",
    "client 1: lost b3",
)
"""The second client writes without b0, which was too slow and keeps two entries of the first writer; now b3 fails."""
ONE_NO_OP: Final = (
    "client 0: append 1",
    "client 0: append 1",
    "b1: takes add 0..0 lac=-1 in term 1 from client 0",
    "b1: takes add 1..1 lac=-1 in term 1 from client 0",
    "client 1: takes over with OPEN term 1, ranges 1>0; 0:[b0 b1]",
    "store: takes v0: IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1] from client 1",
    "client 1: hears written v1",
    "b0: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b0",
    "b0: takes fence, read 0..0 of term 0 in term 2 from client 1",
    "client 1: hears OK to fence, read 0..0 of term 0 in term 2: has nothing, conclusive through 0 from b0",
    "b0: takes no-op 0, truncate 0 lac=-1 in term 2 from client 1",
    "client 2: takes over with IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1]",
    "store: takes v1: IN_RECOVERY term 3, ranges 1>0; 0:[b0 b1] from client 2",
    "client 2: hears written v2",
)
"""b1 has two entries of the first writer, b0 the no-op of a take-over that got no further; the next one begins."""

ONE_OF_A_STRIPE: Final = (
    "client 0: append 1",
    "client 0: append 1",
    "b2: takes add 1..1 lac=-1 in term 1 from client 0",
    "client 1: takes over with OPEN term 1, ranges 1>0; 0:[b0 b1 b2]",
    "store: takes v0: IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1 b2] from client 1",
    "client 1: hears written v1",
    "b0: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b0",
    "b1: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b1",
    "b0: takes fence, read 0..1 of term 0 in term 2 from client 1",
    "client 1: hears OK to fence, read 0..1 of term 0 in term 2: has nothing, conclusive through 1 from b0",
    "b0: takes no-op 0, truncate 0 lac=-1 in term 2 from client 1",
    "client 2: takes over with IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1 b2]",
    "store: takes v1: IN_RECOVERY term 3, ranges 1>0; 0:[b0 b1 b2] from client 2",
    "client 2: hears written v2",
    "b0: takes fence, read lac in term 3 from client 2",
    "client 2: hears OK to fence, read lac in term 3: lac -1 from b0",
    "b1: takes fence, read lac in term 3 from client 2",
    "client 2: hears OK to fence, read lac in term 3: lac -1 from b1",
    "b2: takes fence, read lac in term 3 from client 2",
    "b2: takes fence, read 0..1 of term 0 in term 3 from client 2",
    "client 2: hears OK to fence, read 0..1 of term 0 in term 3: has [1] of term 1, conclusive through 1 from b2",
)
"""b2 has the second entry of the first writer, b0 the no-op of a take-over that got no further; the next one has a response of b2."""

ONE_RECOVERED: Final = (
    "client 0: append 1",
    "b0: takes add 0..0 lac=-1 in term 1 from client 0",
    "client 0: hears OK to add 0..0 lac=-1 in term 1 from b0",
    "client 1: takes over with OPEN term 1, ranges 1>0; 0:[b0 b1]",
    "store: takes v0: IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1] from client 1",
    "client 1: hears written v1",
    "b0: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b0",
    "b1: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b1",
    "b0: takes fence, read 0..0 of term 0 in term 2 from client 1",
    "client 1: hears OK to fence, read 0..0 of term 0 in term 2: has [0] of term 1, conclusive through 0 from b0",
    "b0: takes recovery add 0..0 lac=-1 of term 1 in term 2 from client 1",
    "client 1: hears OK to recovery add 0..0 lac=-1 of term 1 in term 2 from b0",
    "b1: takes fence, read 0..0 of term 0 in term 2 from client 1",
    "b1: takes recovery add 0..0 lac=-1 of term 1 in term 2 from client 1",
)
"""The second client has recovered the acknowledged entry of the first, and writes behind its no-op on the same two bookies."""

NOT_HEARD_OF_IT: Final = (
    "client 0: append 1",
    "client 0: lost b1",
    "b2: takes truncate 0 lac=-1 in term 1 from client 0",
    "client 0: hears OK to truncate 0 lac=-1 in term 1 from b2",
    "store: takes v0: OPEN term 1, ranges 1>0; 0:[b0 b2] from client 0",
    "client 0: hears written v1",
    "b2: takes add 0..0 lac=-1 in term 1 from client 0",
    "client 0: lost b2",
    "b1: takes add 0..0 lac=-1 in term 1 from client 0",
    "client 0: hears OK to add 0..0 lac=-1 in term 1 from b1",
    "b1: takes truncate 0 lac=-1 in term 1 from client 0",
    "client 0: hears OK to truncate 0 lac=-1 in term 1 from b1",
    "store: takes v1: OPEN term 1, ranges 1>0; 0:[b0 b1] from client 0",
    "client 0: hears written v2",
    "client 1: takes over with OPEN term 1, ranges 1>0; 0:[b0 b1]",
    "store: takes v2: IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1] from client 1",
    "client 1: hears written v3",
    "b0: takes fence, read lac in term 2 from client 1",
    "client 1: hears OK to fence, read lac in term 2: lac -1 from b0",
    "b0: takes fence, read 0..0 of term 0 in term 2 from client 1",
    "client 1: hears OK to fence, read 0..0 of term 0 in term 2: has nothing, conclusive through 0 from b0",
    "client 1: gives up no-op 0, truncate 0 lac=-1 in term 2 at b1",
    "client 2: takes over with IN_RECOVERY term 2, ranges 1>0; 0:[b0 b1]",
    "store: takes v3: IN_RECOVERY term 3, ranges 1>0; 0:[b0 b1] from client 2",
    "client 2: hears written v4",
    "b1: takes fence, read lac in term 3 from client 2",
    "client 2: hears OK to fence, read lac in term 3: lac -1 from b1",
    "b1: takes fence, read 0..0 of term 0 in term 3 from client 2",
    "client 2: hears OK to fence, read 0..0 of term 0 in term 3: has [0] of term 1, conclusive through 0 from b1",
    "b1: takes recovery add 0..0 lac=-1 of term 1 in term 3 from client 2",
    "client 2: hears OK to recovery add 0..0 lac=-1 of term 1 in term 3 from b1",
    "b0: takes fence, read lac in term 3 from client 2",
    "b0: takes fence, read 0..0 of term 0 in term 3 from client 2",
    "b0: takes recovery add 0..0 lac=-1 of term 1 in term 3 from client 2",
    "client 2: hears OK to fence, read 0..0 of term 0 in term 3: has nothing, conclusive through 0 from b0",
    "client 2: hears OK to recovery add 0..0 lac=-1 of term 1 in term 3 from b0",
    "b1: takes fence, read 1..1 of term 0 in term 3 from client 2",
    "client 2: hears OK to fence, read 1..1 of term 0 in term 3: has nothing, conclusive through 1 from b1",
    "b0: takes fence, read 1..1 of term 0 in term 3 from client 2",
    "b0: takes no-op 1, truncate 1 lac=-1 in term 3 from client 2",
    "client 2: hears OK to no-op 1, truncate 1 lac=-1 in term 3 from b0",
    "client 2: gives up no-op 1, truncate 1 lac=-1 in term 3 at b1 | chosen 1=b3",
    "b3: takes no-op 1, truncate 1 lac=-1 in term 3 from client 2",
    "client 2: hears OK to no-op 1, truncate 1 lac=-1 in term 3 from b3",
    "store: takes v4: OPEN term 3, ranges 1>0 3>1; 0:[b0 b1] 1:[b0 b3] from client 2",
    "client 2: hears written v5",
)
"""b2 has the first client's entry, as it should, in term 1, and the second's truncation is on its way to it. The third kept that
entry, in a fragment that it has left behind: b0 and b1 have it there, and know the third term."""

FENCING_MUTANTS: Final[tuple[Mutant[StreamConfiguration], ...]] = (
    with_rules(
        "D6",
        "terms only fence, and a take-over ends without a no-op",
        StreamConfiguration(3, 3, 3, 2, fencing=True),
        "U2",
        Patch(TakeOverMachine._close, "self.record.only_fences", "False"),
        Patch(TakeOverMachine._result, "self.record.only_fences", "False"),
    ),
    with_rules(
        "X25",
        "a no-op does not truncate",
        THREE_WRITE_TWO,
        "U2",
        begin=TWO_DIRTY,
        truncate_takes=lambda origin, term: False,
    ),
    with_rules(
        "X26",
        "a no-op at the ack quorum is enough",
        THREE_WRITE_TWO,
        "U2",
        begin=TWO_DIRTY,
        truncation_is_done=lambda acked, size, mask, ack_quorum: RULES.confirms(acked, mask, ack_quorum),
    ),
    with_rules(
        "D9",
        "a bookie comes back into an ensemble with what an earlier writer left",
        StreamConfiguration(4, 3, 3, 2, entries=2, timeouts=2, fencing=True),
        "U2",
        Patch(WriterMachine._next_round, "self.cas.record.only_fences", "False"),
        begin=LEFT_OUT,
    ),
    with_rules(
        "X50",
        "an entry of an older term is kept behind a newer no-op",
        StreamConfiguration(entries=2, clients=2, take_overs=2, fencing=True),
        "U7",
        begin=ONE_NO_OP,
        counts_as_positive=lambda origin, recovered: True,
    ),
    with_rules(
        "votes-stand",
        "what was said of later entries stands where a newer no-op is recovered before them",
        StreamConfiguration(3, 3, 2, 2, entries=2, window=2, clients=2, take_overs=2, fencing=True),
        "U7",
        begin=ONE_OF_A_STRIPE,
        votes_fall=lambda lowest, recovered: False,
    ),
    with_rules(
        "late-truncate",
        "a truncate is obeyed whenever it comes",
        StreamConfiguration(breaks=1, fencing=True),
        "U3",
        truncate_takes=lambda origin, term: True,
    ),
    with_rules(
        "X51",
        "copies are made without raising the target's term",
        StreamConfiguration(4, clients=2, take_overs=2, timeouts=4, repairers=1, fencing=True),
        "U8",
        Patch(RepairMachine._list, "record.term if record.only_fences else NO_TERM", "NO_TERM"),
        Patch(StreamRepairs._lists, "if record.only_fences:", "if False:"),
        begin=NOT_HEARD_OF_IT,
    ),
    with_rules(
        "good-entries-go",
        "what a bookie has under the copy's own origin term goes before the copy as well",
        StreamConfiguration(3, entries=2, take_overs=0, timeouts=1, repairers=1, fencing=True),
        "U3",
        copy_drops_others=lambda origin, named: True,
    ),
    Mutant(
        "absent-truncates",
        "the bookie of an absent slot that returns truncates the fragment",
        replace(SHIPPED, returning_truncates=True),
        StreamConfiguration(ack_quorum=1, timeouts=2, fencing=True),
        "U3",
        begin=ONE_RECOVERED,
    ),
)
"""Where terms only fence."""
