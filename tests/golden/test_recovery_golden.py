"""Golden transcripts of recovery and of reading: each file is a dialogue, a command and everything the machine said.

`QUIRE_GOLDEN_REWRITE=1` writes the files anew; commit the difference only if each changed line has a reason.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import EntryId
from quire.core.ledger.guarantee import GUARANTEED
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState, new_ledger
from quire.core.ledger.reader import LacMachine, ReadMachine
from quire.core.recovery.machine import RecoveryMachine
from quire.core.transcript import block
from support.transcripts import effect_lines

HERE = Path(__file__).parent
FILES = sorted([*(HERE / "recovery").glob("*.txt"), *(HERE / "reader").glob("*.txt")])
ENTRY_BYTES = 10


def span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("..")
    return int(first), int(last or first)


def ids(text: str) -> list[int]:
    """`0..2,5` as ids; `-` is none."""
    if text == "-":
        return []
    return [entry_id for part in text.split(",") for entry_id in range(span(part)[0], span(part)[1] + 1)]


def answer_of(words: list[str]) -> tuple[Answer, list[int], int, list[tuple[int, int]]]:
    """`HELD through N [unknown RANGE]`, or the name of another answer."""
    if words[0].isupper():
        return Answer[words[0]], [], -1, []
    held, through, *rest = words[0], int(words[2]), *words[3:]
    return Answer.OK, ids(held), through, [span(part) for part in rest[1:]]


def record_of(like: LedgerMetadata, text: str) -> LedgerMetadata:
    state, end, length, fragments = re.fullmatch(
        r"(\w+)(?: at (-?\d+) length (\d+))?((?: \d+:\[[^]]*\])+)", text
    ).groups()
    parts = re.findall(r"(\d+):\[([^]]*)\]", fragments)
    return replace(
        like,
        state=LedgerState[state],
        fragments=tuple(Fragment(EntryId(int(first)), tuple(names.split())) for first, names in parts),
        last_entry=EntryId(int(end)) if end is not None else EntryId(-1),
        length=int(length or 0),
    ).checked()


class Dialogue:
    """A recovery, a range read or a LAC read, driven by the commands of a transcript."""

    def __init__(self) -> None:
        self.machine = None
        self.record: LedgerMetadata | None = None
        self.ensemble: tuple[str, ...] = ()
        self.window = 4
        self.now_ms = 0

    def say(self, command: str) -> list[str]:
        word, *rest = command.split()
        try:
            getattr(self, f"do_{word}")(*rest)
        except QuireError as error:
            return [f"!! {error.code}"]
        if self.machine is None:
            return effect_lines([], self.ensemble)
        self.machine.check()
        out, self.machine.out = self.machine.out, []
        return effect_lines(out, self.ensemble)

    def slot(self, bookie: str) -> int:
        return self.ensemble.index(bookie)

    # --- beginnings ------------------------------------------------------------------------------------------------

    def do_ledger(self, ensemble_size: str, write_quorum: str, ack_quorum: str, *rest: str) -> None:
        """`ledger 3 3 2 OPEN 0:[b1 b2 b3] [guaranteed]`."""
        guaranteed = rest[-1] == "guaranteed"
        record = new_ledger(
            7,
            [f"b{i}" for i in range(int(ensemble_size))],
            write_quorum=int(write_quorum),
            ack_quorum=int(ack_quorum),
            digest_type=DigestType.CRC32C,
            password=b"",
            custom=dict([GUARANTEED]) if guaranteed else None,
        )
        self.record = record_of(record, " ".join(rest[:-1] if guaranteed else rest))
        self.ensemble = self.record.last_fragment.ensemble

    def do_window(self, entries: str) -> None:
        self.window = int(entries)

    def do_recover(self, *ignored: str) -> None:
        """`recover [ignore b3]`, or `recover at the ack quorum`."""
        self.machine = RecoveryMachine(self.record, 1, window_entries=self.window)
        gives_up = ignored[:1] == ("at",)
        self.machine.recover(() if gives_up else ignored[1:], at_ack_quorum=gives_up)

    def do_waited(self) -> None:
        self.machine.waited()

    def do_read(self, *words: str) -> None:
        """`read 0..9 [prefer b2] [avoid b1] [speculate MS]`."""
        first, last = span(words[0])
        options = dict(zip(words[1::2], words[2::2], strict=True))
        self.machine = ReadMachine(
            first,
            last,
            self.ensemble,
            self.record.write_quorum,
            prefer=self.slot(options.get("prefer", self.ensemble[0])),
            avoid=1 << self.slot(options["avoid"]) if "avoid" in options else 0,
            speculate_after_ms=int(options.get("speculate", 0)),
        )
        self.machine.read(self.now_ms)

    def do_lac(self) -> None:
        self.machine = LacMachine(self.ensemble, self.record.write_quorum, self.record.ack_quorum)
        self.machine.read()

    # --- answers -----------------------------------------------------------------------------------------------------

    def do_fenced(self, bookie: str, what: str, lafr: str = "-1") -> None:
        """`fenced b1 3 [1]` with its LAC and LAFR, or `fenced b1 TIMED_OUT`."""
        answer = Answer[what] if what.isupper() else Answer.OK
        lac = -1 if what.isupper() else int(what)
        self.machine.fence_answered(self.slot(bookie), answer, lac, int(lafr))

    def do_heard(self, bookie: str, what: str) -> None:
        answer = Answer[what] if what.isupper() else Answer.OK
        self.machine.answered(self.slot(bookie), answer, -1 if what.isupper() else int(what))

    def do_holds(self, bookie: str, *words: str) -> None:
        answer, held, through, unknown = answer_of(list(words))
        entries = {entry_id: ENTRY_BYTES * (entry_id + 1) for entry_id in held}
        self.machine.read_answered(self.slot(bookie), answer, entries, through, unknown)

    def do_sent(self, bookie: str, *words: str) -> None:
        answer, held, through, unknown = answer_of(list(words))
        self.machine.answered(self.slot(bookie), answer, held, through, unknown, self.now_ms)

    def do_added(self, slot: str, bookie: str, entries: str, answer: str = "OK") -> None:
        self.machine.adds_answered(int(slot), bookie, *span(entries), Answer[answer])

    def do_spares(self, *pairs: str) -> None:
        found = {int(slot): bookie for slot, bookie in (pair.split("=") for pair in pairs if pair != "none")}
        self.machine.replacements_found(found)

    def do_length(self, what: str) -> None:
        if what.isdecimal():
            self.machine.length_found(int(what))
        else:
            self.machine.length_unavailable(what.split(",") if what != "denied" else ())

    def do_timer(self, now_ms: str) -> None:
        self.now_ms = int(now_ms)
        self.machine.timer_fired(self.now_ms)

    # --- the store -----------------------------------------------------------------------------------------------------

    def do_written(self, version: str, *rest: str) -> None:
        self.machine.metadata_written(record_of(self.record, " ".join(rest)), int(version))

    def do_conflict(self) -> None:
        self.machine.metadata_conflicted()

    def do_reread(self, version: str, *rest: str) -> None:
        record = None if rest == ("deleted",) else record_of(self.record, " ".join(rest))
        self.machine.metadata_read(record, int(version))


def replay(text: str) -> str:
    """The transcript as the machine speaks it now."""
    dialogue = Dialogue()
    blocks = []
    for part in re.split(r"\n\n+", text.strip()):
        lines = part.splitlines()
        before = lines[: lines.index("----")] if "----" in lines else lines
        comments = [line for line in before if line.startswith("#")]
        (command,) = [line for line in before if not line.startswith("#")]
        blocks.append(block(command, dialogue.say(command), comments))
    return "\n".join(blocks)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_machine_says_what_the_transcript_says(path: Path) -> None:
    said = replay(path.read_text(encoding="utf-8"))
    if os.environ.get("QUIRE_GOLDEN_REWRITE") == "1":
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")
