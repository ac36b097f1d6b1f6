"""When an entry that cannot be read is proven lost, and not only out of reach.

An outage ends, and what it hides is there again; what is lost stays lost. A caller that skips entries has to know which it
is. Pure.

Source: BookKeeper protocol, "Guarantees"; `docs/spark.md`, "What is lost, and what is reported".
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.answers import NEGATIVES, Answer


def proves_loss(answers: Sequence[Answer], write_quorum: int) -> bool:
    """Whether no copy of an entry is left: its whole write set responded, and each has no copy or a damaged one.

    One bookie without a conclusive response may have the entry: then nothing is proven.

    Args:
        answers: of the bookies of the entry's write set, one each.
        write_quorum: how many they are.
    """
    return len(answers) == write_quorum and all(
        answer in NEGATIVES or answer is Answer.DAMAGED for answer in answers
    )
