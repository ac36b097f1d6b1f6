"""The mutants of streams: one fix of terms and of take-overs taken out of each.

Source: docs/protocol/streams.md.
"""

from __future__ import annotations

from typing import Final

from quire.core.answers import Answer
from quire.core.ledger_metadata import LedgerState
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.stream_parts import StreamConfiguration

READ_BESIDE: Final = StreamConfiguration(readers=1, explicit_lac=True)


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
        read_takes_term=lambda: False,
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
        doubt_hides_term=lambda: False,
    ),
    with_rules(
        "X49",
        "a take-over opens before its adds are on their ack quorum",
        StreamConfiguration(window=2),
        "U8",
        recovery_waits_for_its_adds=lambda: False,
    ),
)
