"""Golden transcripts of the writer: each file is a dialogue, a command and everything the machine said.

`QUIRE_GOLDEN_REWRITE=1` writes the files anew; commit the difference only if each changed line has a reason.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import EntryId
from quire.core.ledger.effects import EnsembleChanged
from quire.core.ledger.guarantee import GUARANTEED
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState, new_ledger
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import WriterLimits
from quire.core.transcript import block
from support.transcripts import effect_lines

FILES = sorted((Path(__file__).parent / "writer").glob("*.txt"))
ENTRY_BYTES = 100


class Dialogue:
    """A writer driven by the commands of a transcript."""

    def __init__(self) -> None:
        self.machine: WriterMachine | None = None
        self.now_ms = 0
        self.runs: dict[str, int] = {}

    def say(self, command: str) -> list[str]:
        word, *rest = command.split()
        if word == "ledger":
            guaranteed = rest[-1:] == ["guaranteed"]
            E, Qw, Qa, *bookies = [each for each in rest if "=" not in each and each != "guaranteed"]
            limits = {name: int(value) for name, value in (each.split("=") for each in rest if "=" in each)}
            assert int(E) == len(bookies)
            record = new_ledger(
                7,
                bookies,
                write_quorum=int(Qw),
                ack_quorum=int(Qa),
                digest_type=DigestType.CRC32C,
                password=b"",
                custom=dict([GUARANTEED]) if guaranteed else None,
            )
            self.machine = WriterMachine(record, 0, limits=WriterLimits(**limits))
            return effect_lines(self.machine.out, bookies)
        machine = self.machine
        assert machine is not None
        ensemble = machine.ensemble
        try:
            getattr(self, f"do_{word}")(*rest)
        except QuireError as error:
            return [f"!! {error.code}"]
        machine.check()
        out, machine.out = machine.out, []
        lines = []
        for effect in out:
            if isinstance(effect, EnsembleChanged):
                ensemble = effect.ensemble
            lines += effect_lines([effect], ensemble)
        return lines or effect_lines([], ensemble)

    def do_began(self, _: str, *bookies: str) -> None:
        self.machine.began_without([self.machine.ensemble.index(bookie) for bookie in bookies], self.now_ms)

    def do_append(self, count: str) -> None:
        number = self.machine.window.next_run
        first = self.machine.append(int(count), int(count) * ENTRY_BYTES)
        self.runs[f"{first}..{first + int(count) - 1}"] = number

    def do_ack(self, *words: str) -> None:
        *bookies, entries = words
        for bookie in bookies:
            for slot in self.slots(bookie):
                self.machine.adds_acked(slot, bookie, self.runs[entries])

    def do_fail(self, bookie: str, entries: str, answer: str) -> None:
        for slot in self.slots(bookie):
            self.machine.add_failed(slot, bookie, self.runs[entries], Answer[answer])

    def do_lost(self, *bookies: str) -> None:
        for bookie in bookies:
            for slot in self.slots(bookie):
                self.machine.bookie_lost(slot, bookie)

    def slots(self, bookie: str) -> list[int]:
        """The bookie's slot; slot 0 for a bookie that has none any more, so that late answers can be played."""
        ensemble = self.machine.ensemble
        return [ensemble.index(bookie)] if bookie in ensemble else [0]

    def do_chosen(self, *pairs: str) -> None:
        refused = [self.machine.ensemble.index(pair[1:]) for pair in pairs if pair.startswith("!")]
        pairs = [pair.split("=") for pair in pairs if "=" in pair]
        chosen = {int(slot): bookie for slot, bookie in pairs}
        self.machine.replacements_chosen(chosen, self.now_ms, refused=refused)

    def do_found(self, what: str, *bookies: str) -> None:
        returned = [self.machine.ensemble.index(bookie) for bookie in bookies]
        self.machine.bookies_found(returned, self.now_ms, spare=what == "spare")

    def do_written(self, version: str) -> None:
        self.machine.metadata_written(int(version))

    def do_conflict(self) -> None:
        self.machine.metadata_conflicted()

    def do_unknown(self) -> None:
        self.machine.metadata_unknown(self.now_ms)

    def do_missing(self) -> None:
        self.machine.metadata_missing()

    def do_read(self, version: str, *words: str) -> None:
        self.machine.metadata_read(parse_record(self.machine.record, " ".join(words)), int(version))

    def do_timer(self, now_ms: str) -> None:
        self.now_ms = int(now_ms)
        self.machine.timer_fired(self.now_ms)

    def do_close(self, *at_ack_quorum: str) -> None:
        self.machine.close(at_ack_quorum=bool(at_ack_quorum))

    def do_abandon(self) -> None:
        self.machine.abandon()


def parse_record(like: LedgerMetadata, text: str) -> LedgerMetadata:
    state, end, length, fragments = re.fullmatch(
        r"(\w+)(?: at (-?\d+) length (\d+))? (\d+:\[.*\])", text
    ).groups()
    parts = re.findall(r"(\d+):\[([^]]*)\]", fragments)
    return LedgerMetadata(
        ledger_id=like.ledger_id,
        ensemble_size=like.ensemble_size,
        write_quorum=like.write_quorum,
        ack_quorum=like.ack_quorum,
        digest_type=like.digest_type,
        password=like.password,
        state=LedgerState[state],
        fragments=tuple(Fragment(EntryId(int(first)), tuple(names.split())) for first, names in parts),
        last_entry=EntryId(int(end)) if end is not None else EntryId(-1),
        length=int(length or 0),
    ).checked()


def replay(text: str) -> str:
    """The transcript as the machine speaks it now."""
    dialogue = Dialogue()
    blocks = []
    for part in re.split(r"\n\n+", text.strip()):
        lines = part.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        commands = [
            line for line in lines[: lines.index("----") if "----" in lines else None] if line[:1] != "#"
        ]
        if not commands:
            blocks.append("\n".join(comments) + "\n")
            continue
        (command,) = commands
        blocks.append(block(command, dialogue.say(command), comments))
    return "\n".join(blocks)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_writer_says_what_the_transcript_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    said = replay(text)
    if os.environ.get("QUIRE_GOLDEN_REWRITE") == "1":
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")
