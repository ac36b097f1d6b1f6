"""One real bookie without a network: its ledgers over a disk in memory, asked directly; and recoveries from such."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Any

from crc32c import crc32c

from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.effects import (
    FindLength,
    RecoveryClosed,
    SendLacRead,
    SendRecoveryAdds,
    SendRecoveryRead,
    WaitForAnswers,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerMetadata, new_ledger
from quire.core.recovery.machine import RecoveryMachine
from quire.storage.holding import RangeHeld
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.states import States
from quire.wire.native import Flag, Kind, Request
from quire.wire.run import RunView
from quire_testing.kit.stepped import StepClock, StepWorker
from support.museum import require
from support.storage_disk import (
    DIGEST,
    IDENTITY,
    SMALL,
    Answers,
    FaultyFiles,
    make_run,
    put,
    read_all,
    settle,
)

KEY = b"k" * 20
NOTHING = memoryview(b"")


def opened(files: Any, kind: type[LedgerStorage] = LedgerStorage, *, served: bool = False) -> LedgerStorage:
    """A bookie's disk, up; `served`: the cluster knows that it has been up before."""
    return kind.open(
        "/bookie",
        SMALL,
        IDENTITY,
        files=files,
        worker=StepWorker(),
        clock=StepClock(1_000_000),
        chance=random.Random(7),
        served=served,
    )


def filled(files: FaultyFiles, kind: type[LedgerStorage] = LedgerStorage) -> LedgerStorage:
    """Sixty entries of each of three ledgers, over several segments."""
    callback = Answers()
    storage = opened(files, kind)
    for ledger_id in (1, 2, 3):
        storage.put_facts(LedgerFacts(ledger_id, key=KEY), callback, None)
    settle(storage)
    for first in range(0, 60, 10):
        for ledger_id in (1, 2, 3):
            put(storage, make_run(ledger_id, first, first + 9, payload=b"x" * 1000), callback, lac=first - 1)
        settle(storage)
    assert all(error is None for _, error in callback.told)
    return storage


def check_nothing_denied(storage: LedgerStorage, ledger_ids: Iterable[int], name: str = "readable") -> None:
    """Every entry of 0..59 comes or is unknown."""
    for ledger_id in ledger_ids:
        found = read_all(storage, ledger_id, 0, 59)
        lost = [i for i in range(60) if i not in found]
        require(
            not lost or storage.states.in_limbo(ledger_id),
            name,
            f"ledger {ledger_id}: {lost} are said never to have been",
        )


class Denies:
    """A disk for which what cannot be read is not there."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self.states = DeniesLimbo(storage.states)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def read(self, ledger_id: int, first: int, last: int, bytes_max: int, **how: Any) -> RangeHeld:
        held = self._storage.read(ledger_id, first, last, bytes_max, **how)
        return RangeHeld(held.runs, max(held.conclusive_through, last if not held.runs else first - 1), [])


class DeniesLimbo:
    """The states of such a disk: no ledger is in limbo."""

    def __init__(self, states: States) -> None:
        self._states = states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._states, name)

    def in_limbo(self, ledger_id: int) -> bool:
        return False


class OneBookie:
    """The ledgers of one bookie over a disk, asked directly."""

    def __init__(
        self, storage: Any, kind: type[Ledgers] = Ledgers, rules: BookieRules = RULES, *, name: str = "b1"
    ) -> None:
        self.name = name
        self.storage = storage
        self.ledgers = kind(storage, lambda: None, rules)

    def request(self, kind: Kind, ledger_id: int, flags: int = 0, run: RunView | None = None) -> Request:
        body = NOTHING if run is None else memoryview(run.body)
        digest = int(DigestType.CRC32C)
        return Request(
            kind, digest, flags, 1, 0, ledger_id, 0, KEY, 0, -1, -1, crc32c(body) if run else 0, body
        )

    def add(self, ledger_id: int, first: int, last: int, *, recovery: bool = False) -> Answer:
        """The answer that leaves, after the sync."""
        run, callback = make_run(ledger_id, first, last), Answers()
        flags = int(Flag.RECOVERY) if recovery else 0
        answer = self.ledgers.add(self.request(Kind.ADD, ledger_id, flags, run), run, callback, "add")
        if answer is Answer.OK:
            self.settle()
            assert callback.told
            return Answer.OK if callback.told[0][1] is None else Answer.ERROR
        return answer

    def fence(self, ledger_id: int) -> list[Answer]:
        """The answers to a fencing request, once they leave: call `settle`."""
        answers: list[Answer] = []
        self.ledgers.fence(self.request(Kind.READ_LAC, ledger_id, int(Flag.FENCE)), answers.append)
        return answers

    def settle(self) -> None:
        self.ledgers.flush()
        self.storage.journal.finish()
        self.storage.flush()

    # --- what a recoverer asks ---------------------------------------------------------------------------------------

    def fenced_lac(self, ledger_id: int) -> tuple[Answer, int]:
        self.fence(ledger_id)
        self.settle()
        answer, lac, _, _ = self.ledgers.last_confirmed(self.request(Kind.READ_LAC, ledger_id))
        return answer, lac

    def recovery_read(self, ledger_id: int, first: int, last: int) -> tuple[Answer, dict[int, int], int, Any]:
        found = self.ledgers.read(self.request(Kind.READ, ledger_id), first, last, 1 << 20)
        entries = {}
        for body in found.runs:
            for entry_id, raw in RunView.parse(body).entries():
                if first <= entry_id <= last:
                    entries[entry_id] = DIGEST.open(raw, ledger_id, entry_id).length
        return found.answer, dict(sorted(entries.items())), found.conclusive_through, found.unknown


def recovered(
    bookies: list[OneBookie], quorums: tuple[int, int, int], *, slow: Collection[str] = ()
) -> LedgerMetadata | None:
    """Recover ledger 1 from these bookies, without the slow ones; the closed record, None if nothing was decided."""
    names = {bookie.name: bookie for bookie in bookies}
    record = new_ledger(
        LedgerId(1),
        [BookieId(name) for name in names],
        write_quorum=quorums[1],
        ack_quorum=quorums[2],
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    machine = RecoveryMachine(record, 1, window_entries=16)
    machine.recover()
    version = 1
    for _ in range(1000):
        if not machine.out:
            break
        # Whoever has not answered by then is slower than the wait.
        wait = next((each for each in machine.out if isinstance(each, WaitForAnswers)), None)
        if wait is not None:
            machine.out.remove(wait)
            machine.waited()
            continue
        effect = machine.out.pop(0)
        late = getattr(effect, "bookie", "") in slow
        if isinstance(effect, WriteMetadata):
            version += 1
            machine.metadata_written(effect.record, version)
        elif isinstance(effect, RecoveryClosed):
            return effect.record
        elif late:
            continue
        elif isinstance(effect, SendLacRead):
            machine.fence_answered(effect.slot, *names[effect.bookie].fenced_lac(1))
        elif isinstance(effect, SendRecoveryRead):
            answers = names[effect.bookie].recovery_read(1, effect.first, effect.last)
            machine.read_answered(effect.slot, *answers)
        elif isinstance(effect, SendRecoveryAdds):
            answer = names[effect.bookie].add(1, effect.first, effect.last, recovery=True)
            machine.adds_answered(effect.slot, effect.bookie, effect.first, effect.last, answer)
        elif isinstance(effect, FindLength):
            machine.length_found(1000 * (effect.entry_id + 1))
        else:
            return None
    return None
