"""Golden transcripts of the log's machines: each file is a dialogue, a command and everything the machine said.

`QUIRE_GOLDEN_REWRITE=1` writes the files anew; commit the difference only if each changed line has a reason.

The commands: `log ITEM...` makes the list that the store holds (`5:10` closed with ten records, `6` open), `other ...`
changes it behind the machine's back, the rest are the machine's inputs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.errors import QuireError
from quire.core.ids import LedgerId
from quire.core.log import effects as e
from quire.core.log import trimming as t
from quire.core.log.list import Adoption, Leader, LedgerSummary, LogHead, LogItem, LogPage, PageLayout, paged
from quire.core.log.machine import LogMachine
from quire.core.log.trimming import TrimMachine
from quire.core.transcript import block

FILES = sorted((Path(__file__).parent / "log").glob("*.txt"))
LAYOUT = PageLayout(page_items=3, fan_out=2)


def name_page(page: LogPage) -> str:
    parts = [str(item.ledger_id) for item in page.items] + [child.name for child in page.children]
    return f"p{page.level}({' '.join(parts)})"


def item_text(item: LogItem) -> str:
    first = "?" if item.first_offset is None else item.first_offset
    return f"{item.ledger_id}@{first}" + ("+" if item.is_open else f"..{item.next_offset}")


def head_text(head: LogHead) -> str:
    parts = [page.name for page in head.pages] + [item_text(item) for item in head.items]
    leader = f"e{head.leader.epoch}:{head.leader.holder or 'nobody'}"
    start = f" from {head.start_offset}" if head.start_offset else ""
    waiting = f" adopt {len(head.adoptions)}" if head.adoptions else ""
    intents = "".join(f" {intent.kind.name.lower()}<{intent.before}" for intent in head.intents)
    return f"{leader}{start} [{' '.join(parts)}]{waiting}{intents}"


def effect_text(effect: object) -> str:
    match effect:
        case e.ReadHead():
            return "-> store read"
        case e.WriteHead(head, version, pages):
            made = "".join(f" and {name_page(page)}" for page in pages)
            return f"-> store write v{version}: {head_text(head)}{made}"
        case e.RecoverLedger(item):
            return f"-> recover {item.ledger_id}"
        case e.CreateLedger():
            return "-> create"
        case e.DeleteLedger(ledger_id):
            return f"-> delete {ledger_id}"
        case e.BackOff(attempt):
            return f"?? another leader came first, attempt {attempt}"
        case e.Serve(ledger_id, first, epoch):
            return f"=> serve on {ledger_id} from offset {first}, epoch {epoch}"
        case e.DrainLedger(ledger_id):
            return f"-> drain {ledger_id}"
        case e.SwitchLedger(ledger_id, first):
            return f"=> go on in {ledger_id} from offset {first}"
        case e.CloseLedger(ledger_id):
            return f"-> close {ledger_id}"
        case e.Rolled(done):
            return "=> rolled" if done else "=> not rolled"
        case e.LeadershipEnded(reason, detail):
            return f"=> ended: {reason.value}: {detail}"
        case t.TrimReadPage(page):
            return f"-> read {page.name}"
        case t.TrimDeletePage(page):
            return f"-> delete {page.name}"
        case t.TrimDeleteLedger(item):
            return f"-> delete ledger {item.ledger_id}"
        case t.TrimDeleteLog():
            return "-> delete head and name"
        case t.TrimEnded(outcome, detail):
            return f"=> {outcome.value}{': ' if detail else ''}{detail}"
    raise AssertionError(effect)


class Dialogue:
    """A store with one list, and one machine."""

    def __init__(self) -> None:
        self.machine: LogMachine | TrimMachine = LogMachine("me", name_page=name_page, layout=LAYOUT)
        self.head: LogHead | None = LogHead(b"\x01" * 16, "orders")
        self.version = 1
        self.pages: dict[str, LogPage] = {}
        self.writes: list[e.WriteHead] = []

    def say(self, command: str) -> list[str]:
        word, *rest = command.split()
        try:
            getattr(self, f"do_{word}")(*rest)
        except QuireError as error:
            return [f"!! {error.code}"]
        self.machine.check()
        out, self.machine.out = self.machine.out, []
        self.writes += [effect for effect in out if isinstance(effect, e.WriteHead)]
        return [effect_text(effect) for effect in out] or ["nothing"]

    # --- the store ---------------------------------------------------------------------------------------------

    def do_log(self, *items: str) -> None:
        head = LogHead(b"\x01" * 16, "orders", leader=Leader(4, "them"))
        for item in items:
            ledger, _, count = item.partition(":")
            first = None if head.open_items else head.closed_end
            head = head.with_item(LogItem(LedgerId(int(ledger)), first_offset=first))
            if count:
                head = head.with_completed(int(ledger), LedgerSummary(int(count)))
        self.head, pages = paged(head, LAYOUT, name_page)
        self.pages |= {name_page(page): page for page in pages}

    def do_other(self, what: str, *rest: str) -> None:
        """Somebody else changes the list."""
        assert self.head is not None
        head = self.head
        match what:
            case "leads":
                head = head.with_leader(Leader(head.leader.epoch + 1, rest[0]))
            case "lists":
                head = head.with_item(LogItem(LedgerId(int(rest[0]))))
            case "completes":
                head = head.with_completed(int(rest[0]), LedgerSummary(int(rest[1])))
            case "truncates":
                head = head.with_truncation(int(rest[0]), head.closed_end, 0)
            case "adopts":
                item = LogItem(LedgerId(int(rest[0])), count=int(rest[1]))
                head = replace(head, adoptions=(*head.adoptions, Adoption((item,))))
            case "deletes":
                head = head.with_deletion(0)
        self.head, self.version = head, self.version + 1

    def do_lands(self) -> None:
        """The newest write happens, whatever its caller is told."""
        write = self.writes[-1]
        self.pages |= {name_page(page): page for page in write.pages}
        self.head, self.version = write.head, self.version + 1

    # --- inputs of both ----------------------------------------------------------------------------------------

    def do_read(self) -> None:
        self.machine.head_read(self.head, self.version)

    def do_written(self) -> None:
        assert self.writes[-1].version == self.version, "the store would refuse this"
        self.do_lands()
        self.machine.head_written(self.version)

    def do_conflict(self) -> None:
        self.machine.head_conflicted()

    # --- a leader ----------------------------------------------------------------------------------------------

    def do_open(self) -> None:
        self.machine.open()

    def do_unknown(self) -> None:
        self.machine.head_unknown()

    def do_recovered(self, ledger: str, records: str) -> None:
        self.machine.recovered(LedgerId(int(ledger)), LedgerSummary(int(records)))

    def do_unrecovered(self, ledger: str, why: str) -> None:
        self.machine.recovery_failed(LedgerId(int(ledger)), deleted=why == "gone", detail=why)

    def do_created(self, ledger: str) -> None:
        self.machine.created(LedgerId(int(ledger)), 0)

    def do_uncreated(self) -> None:
        self.machine.create_failed("too few bookies")

    def do_retry(self) -> None:
        self.machine.retry()

    def do_roll(self) -> None:
        self.machine.roll()

    def do_seen(self) -> None:
        """Its driver saw the list change."""
        assert isinstance(self.machine, LogMachine)
        assert self.head is not None
        self.machine.head_seen(self.head, self.version)

    def do_drained(self, ledger: str, records: str) -> None:
        self.machine.drained(LedgerId(int(ledger)), int(records))

    def do_closed(self, ledger: str, records: str) -> None:
        self.machine.ledger_closed(LedgerId(int(ledger)), LedgerSummary(int(records)))

    def do_failed(self, ledger: str) -> None:
        self.machine.ledger_failed(LedgerId(int(ledger)), "fenced")

    def do_close(self) -> None:
        self.machine.close()

    def do_abandon(self) -> None:
        self.machine.abandon()

    # --- a truncation ------------------------------------------------------------------------------------------

    def do_truncate(self, before: str) -> None:
        assert self.head is not None
        self.machine = TrimMachine(int(before), end=self.head.closed_end)
        self.machine.start()

    def do_delete(self) -> None:
        self.machine = TrimMachine(None)
        self.machine.start()

    def do_page(self, *name: str) -> None:
        self.machine.page_read(self.pages.get(" ".join(name)))

    def do_deleted(self, *what: str) -> None:
        if what[0].isdigit():
            self.machine.ledger_deleted(LedgerId(int(what[0])))
        else:
            self.pages.pop(" ".join(what), None)
            self.machine.page_deleted(" ".join(what))

    def do_vanished(self) -> None:
        self.machine.log_deleted()


def replay(text: str) -> str:
    """Run every command of a transcript and write down what was said."""
    dialogue = Dialogue()
    blocks = []
    for part in text.strip().split("\n\n"):
        lines = part.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        command = next((line for line in lines if line and not line.startswith("#")), None)
        if command is None:
            blocks.append("\n".join(comments) + "\n")
            continue
        blocks.append(block(command, dialogue.say(command), comments))
    return "\n".join(blocks)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_machine_says_what_it_said(path: Path) -> None:
    text = path.read_text()
    said = replay(text)
    if os.environ.get("QUIRE_GOLDEN_REWRITE"):
        path.write_text(said)
        return
    assert said == text


def test_there_are_transcripts() -> None:
    assert FILES
