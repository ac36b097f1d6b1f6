"""Sentences of the source documents, each with what implements it and the mutant that breaks it (docs/testing-coverage.md).

A sentence is cut down to words that stand on one line of the code, so that one search finds them. A rule is a
judgement of the `rules.py` of a room; anything else is named by its file and its name in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from quire_testing.explorer.switches import RULES

ROOT: Final = Path(__file__).resolve().parent.parent
PLACES: Final = ("src/quire", "tests/source")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One row.

    Attributes:
        words: as they stand in the code.
        by: the rule or table that implements it: a name in the `rules.py` of a room, or `file: name`.
        mutant: its name in the explorer's table of mutants.
    """

    words: str
    by: str
    mutant: str


SENTENCES: Final[dict[str, tuple[Sentence, ...]]] = {
    "BookKeeper ledgers to logs": (
        Sentence("A log in bookkeeper is built from a number of ledgers, with a fixed order.", "core/log/list.py: LogHead", "log-blind-truncation"),
        Sentence("Ledgers cannot be reopened for writing once they have been closed/recovered.", "ledgers_to_fence", "log-fences-last-two"),
        Sentence("there can only ever been one leader that adds entries to a single ledger", "ledgers_to_fence", "X20-fence"),
        Sentence("It is the job of the log to guarantee that only one can write changes to the system.", "core/log/cas.py: CAS", "X20-cas"),
        Sentence("fence the last 2 ledgers in the list", "ledgers_to_fence", "X19"),
        Sentence("When the CAS operation fails, the leader must start at step 1 again.", "core/log/machine.py: LOG", "X20-cas"),
        Sentence("The node must not serve any writes until step 5 completes successfully", "core/log/machine.py: LogMachine", "X21"),
        Sentence("Ledgers can only be deleted as a whole.", "core/log/trimming.py: TRIM", "log-deletes-first"),
        Sentence("3. write the new ledger list to the datastore", "core/log/roll.py: ROLL", "X22"),
        Sentence("By deferring the closing of the previous ledger until step 4, we can continue writing to the log", "core/log/machine.py: LogMachine", "log-sends-early"),
        Sentence("This is safe as long as you fence the last 2 ledgers when acquiring leadership.", "may_roll", "X34"),
    ),
    "BookKeeper protocol": (
        Sentence("Once Qa bookies from the write quorum acknowledge the write", "confirms", "X1"),
        Sentence("only if all entries with lower entry ids in the ledger", "core/ledger/writer.py: WriterMachine", "X17"),
        Sentence("the first message that has not been acknowledged to the client", "new_fragment_start", "X9"),
        Sentence("if the state of the ledger is no longer OPEN, we send an error to the client", "writer_may_change", "X13"),
        Sentence("changing the state to CLOSED, and setting the last entry", "core/ledger/writer.py: WriterMachine", "X16"),
        Sentence("retry closing as long as the state of the ledger is still OPEN", "close_outcome", "close_outcome"),
        Sentence("the fenced state of the ledger is persisted to disk.", "core/bookie/ledger.py: BookieLedgerMachine", "D7"),
        Sentence("at least (Qw-Qa)+1 bookies from each write quorum in the ensemble", "covers", "X3"),
        Sentence("The client will get a LedgerFenced error instead", "add_outcome", "add_outcome"),
        Sentence("highest response as the entry id to start reading forward from", "recovery_start", "D2"),
        Sentence("to the entire write quorum for that entry", "core/recovery/write_back.py: WriteBack", "X8"),
        Sentence("entry of the ledger to the last entry it wrote", "core/recovery/machine.py: RecoveryMachine", "X4"),
    ),
    "BookKeeper overview": (
        Sentence("Once that ledger is closed or the client fails, no more entries can be added.", "add_allowed", "X6"),
        Sentence("An entry is considered recorded when both of the following conditions are met", "confirms", "X1"),
        Sentence("all entries with a lower entry id have been accepted by a quorum of", "core/ledger/writer.py: WriterMachine", "X17"),
        Sentence("Any failures will result in the entry being sent to a new quorum of bookies.", "core/ledger/writer.py: RunWindow", "X11"),
        Sentence("If an entry is missing or invalid (a bad MAC for example), the client will make a request to a different", "negative_answer", "X29"),
        Sentence("Although two clients may try to recover a ledger concurrently, only one will succeed", "core/ledger/writer.py: WriterMachine", "X16"),
        Sentence("If an entry has been successfully recorded, it must be readable.", "counts_as_negative", "X5"),
        Sentence("If an entry is read once, it must always be available to be read.", "core/recovery/machine.py: RecoveryMachine", "X7"),
        Sentence("1. Find the entry with the highest last recorded entry, LC", "recovery_start", "D2"),
        Sentence("2. Find the highest consecutively recorded entry, LR", "negative_votes_needed", "X2"),
        Sentence("3. Make sure that all entries between LC and LR are on a quorum of bookies", "core/recovery/write_back.py: WriteBack", "X8"),
    ),
    "Vanlightly's guide": (
        Sentence("Each entry sent to a bookie also contains the current LAC and that way, each bookie also tracks", "lac_after_add", "recovery-adds-raise-lac"),
        Sentence("a regular read can be served by a single bookie", "negative_answer", "reader-damage"),
        Sentence("If a read fails then the client can simply send the read to another bookie", "counts_as_negative", "reader-timeout"),
        Sentence("A given property is satisfied by at least one bookie from every possible ack quorum within the cohort.", "negative_votes_needed", "X2"),
        Sentence("There exists no ack quorum of bookies that do not satisfy the property within the cohort.", "covers", "X3"),
        Sentence("The fencing requests are in fact Ensemble Coverage LAC reads with the fencing flag set.", "counts_as_known", "counts_as_known"),
        Sentence("Next the client starts sending recovery reads starting at the entry id of LAC + 1", "recovery_start", "D2"),
        Sentence("Each recovery read determines whether an entry is committed", "core/recovery/machine.py: RecoveryMachine", "D1"),
        Sentence("Uncommitted = Quorum Coverage negative responses", "negative_votes_needed", "X2"),
        Sentence("If all responses are received and neither threshold is reached then the result is inconclusive", "counts_as_negative", "X5"),
    ),
    "Vanlightly's unbounded ledgers": (
        Sentence("that is incremented each time a client decides it should take over", "next_term", "X33"),
        Sentence("it increments the ledger term both in metadata", "next_term", "X33"),
        Sentence("but only one client at a time", "is_own_take_over", "own-term"),
        Sentence("under normal circumstances, there should only be one client trying to write", "is_own_take_over", "own-term"),
        Sentence("a fencing mechanism to prevent former leader clients from making progress", "writer_may_change", "X47"),
        Sentence("The client sends the LAC requests to the current fragment as normal", "core/bookie/ledger.py: BookieLedgerMachine", "X24"),
        Sentence("If a bookie has a higher term, it rejects the request with an InvalidTerm response", "term_answer", "X23"),
        Sentence("the only thing normal reads should care about is the LAC as always", "may_use_lac", "X46"),
        Sentence("the client can include the correct term when performing a read of a given entry", "may_use_lac", "X58"),
        Sentence("Recovery is now performed at the beginning of a term", "core/recovery/machine.py: RecoveryMachine", "X49"),
        Sentence("it increments the term in the ledger metadata and then starts ledger recovery", "next_term", "X33"),
        Sentence("The following requests need to include the current term of the client", "term_answer", "X23"),
        Sentence("rather than a fencing flag", "core/bookie/ledger.py: BookieLedgerMachine", "X24"),
        Sentence("bookies only need to store the term in the ledger index as it does with fencing right now", "core/bookie/ledger.py: BookieLedgerMachine", "X48"),
        Sentence("it can't leave any dirty entries left by the previous term in the last fragment", "core/recovery/take_over.py: TakeOverMachine", "D6"),
        Sentence("including a new “truncate” flag in the last entry written back during recovery", "truncate_takes", "X25"),
        Sentence("We must guarantee that this last entry is written to all bookies of the last fragment", "truncation_is_done", "X26"),
        Sentence("When a bookie receives an entry with the truncate flag, it deletes all entries with a higher entry id.", "truncate_takes", "X25"),
    ),
}  # fmt: skip

NEXT: Final[dict[str, tuple[str, ...]]] = {
    "Vanlightly's unbounded ledgers": (
        "BookKeeper clients will need to be aware of these no-op entries and discard them",
        "We only require “guaranteed write quorum” for recovery writes",
    ),
}
"""Sentences of a design that is next: what would implement them is refused by a test that cites them."""


@cache
def lines() -> tuple[tuple[str, str], ...]:
    """Every line of the code in which a sentence may stand, with its file."""
    return tuple(
        (str(path.relative_to(ROOT)), line)
        for place in PLACES
        for path in sorted((ROOT / place).rglob("*.py"))
        for line in path.read_text().splitlines()
    )


def stands_in(words: str) -> list[str]:
    """The files that have a sentence on one line; the case of letters does not count."""
    wanted = words.lower()
    return sorted({path for path, line in lines() if wanted in line.lower()})


def room_of(rule: str) -> str:
    """The file of a judgement."""
    return RULES.rooms()[rule].__module__.removeprefix("quire.").replace(".", "/") + ".py"


def table() -> str:
    """The rows in Markdown."""
    rows = [
        "| source | sentence | implemented by | broken by | stands in |",
        "| --- | --- | --- | --- | --- |",
    ]
    for source, sentences in SENTENCES.items():
        for each in sentences:
            found = ", ".join(f"`{path.removeprefix('src/quire/')}`" for path in stands_in(each.words))
            by = each.by if ":" in each.by else f"{room_of(each.by)}: {each.by}"
            rows.append(f"| {source} | {each.words} | `{by}` | `{each.mutant}` | {found} |")
    for source, later in NEXT.items():
        for words in later:
            found = ", ".join(f"`{path}`" for path in stands_in(words))
            rows.append(f"| {source} | {words} | next | - | {found} |")
    return "\n".join(rows) + "\n"
