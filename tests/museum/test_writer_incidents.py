"""Incidents of ensemble changes: entries that the metadata place where they are not, and writers that wait for ever."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.ensemble_change import ChangeStatus, mask_of
from quire.core.ledger.record_cas import StoreRequest
from quire.core.ledger.writer import WriterMachine, slots_of
from quire.core.ledger.writer_state import Status
from support.museum import explored, incident
from support.stage import Stage


@incident(
    mutant="X12",
    ref="issues/4651",
    title="Entries confirmed while an ensemble change is under way",
    happened=(
        "E=2, Qw=2, Qa=1; the LAC is 4 and the last fragment starts at 5. Adds 5 and 6 are sent, 7 fails because the "
        "channel is not writable. A change starts at LAC + 1 = 5 and moves the fragment to two other bookies. While "
        "its answer is queued 5 and 6 succeed on the old bookies and leave the pending queue, so nobody sends them "
        "again: ZooKeeper says that they are where they never were."
    ),
    ours="The same entries, the same order, on the shipped writer: what is acknowledged meanwhile is recorded, not told.",
    switch="callers may be told while a change is in flight",
    violates="I2",
)
def test_4651_confirmed_during_a_change(fault: bool) -> None:
    stage = Stage(["b1", "b2", "b3", "b4"], (2, 2, 1))
    for entry_id in range(5):
        stage.append()
        stage.arrives("b1", entry_id)
        stage.arrives("b2", entry_id)
    for _ in range(3):
        stage.append()
    stage.fails("b1", 7)
    stage.fails("b2", 7)
    stage.choose(b1="b3")
    stage.arrives("b1", 5)
    stage.arrives("b2", 6)
    stage.change(b2="b4")
    stage.check_copies()
    stage.arrives("b4", 5)
    stage.arrives("b4", 6)
    stage.arrives("b4", 7)
    stage.check_copies()
    assert stage.told == list(range(8))


class TellsBetweenUnsets(WriterMachine):
    """Looks for confirmed heads after each pending entry whose acknowledgements it has just forgotten."""

    __slots__ = ()

    def _resend(self, changed: tuple[int, ...]) -> None:
        window, kept = self.window, ~mask_of(changed)
        for number in list(window.runs):
            if number not in window.runs:
                continue
            run = window.runs[number]
            acked = {each: slots & kept if each == number else slots for each, slots in window._acked.items()}
            window._acked = {each: slots for each, slots in acked.items() if slots}
            slots = slots_of(window.masks_of(run), changed)
            if slots:
                self._send(number, run, slots)
            elif (
                confirmed := window.advance()
            ):  # "it may have completed already, and only waited for the change"
                self._confirmed(confirmed)


@incident(
    ref="issues/4097",
    title="Records that name bookies which never got the entries",
    happened=(
        "E=6, Qw=Qa=2. Two changes follow each other within half a second: [A..F], then A and D are replaced by G and "
        "H, then B and C by I and J. Entries of the last change were confirmed on bookies that it had just replaced; "
        'I and J have no entry of the ledger, and reading says "No such entry".'
    ),
    ours="Both changes with entries pending behind a slow head, on the shipped writer, with the thread's ensembles.",
    switch="a writer that tells callers in the middle of forgetting the acknowledgements of replaced bookies",
    violates="I2",
)
def test_4097_two_changes_in_a_row(fault: bool) -> None:
    writer = TellsBetweenUnsets if fault else WriterMachine
    names = [*"ABCDEF", "G", "H", "I", "J"]
    stage = Stage(names, (6, 2, 2), writer=writer)
    for _ in range(9):
        stage.append()
    # Entry i goes to slots i and i + 1. Entry 3 (D, E) becomes the slow head; those behind it are complete or nearly.
    for bookie, entry_id in (("A", 0), ("B", 0), ("B", 1), ("C", 1), ("C", 2), ("D", 2)):
        stage.arrives(bookie, entry_id)
    for bookie, entry_id in (("E", 3), ("E", 4), ("F", 4), ("F", 5), ("B", 6), ("B", 7), ("C", 7), ("C", 8)):
        stage.arrives(bookie, entry_id)
    stage.fails("A", 5, Answer.TIMED_OUT)
    stage.fails("D", 3, Answer.TIMED_OUT)
    stage.change(A="G", D="H")
    for bookie, entry_id in (("G", 5), ("G", 6), ("H", 8)):
        stage.arrives(bookie, entry_id)
    # The second change replaces B and C, where 6 and 7 were complete; meanwhile H gives the head what it lacked.
    stage.loses("B", "C")
    stage.arrives("H", 3)
    stage.change(B="I", C="J")
    stage.check_copies()
    stage.rest_arrives()
    stage.check_copies()
    assert stage.told == list(range(9))


@incident(
    ref="issues/3005",
    title="An entry is confirmed although the change has just broken its quorum",
    happened=(
        "E=2, Qw=Qa=1: entries 0 and 2 go to b0, 1 and 3 to b1. Entry 1 is complete, b1 crashes, a change begins; 0 "
        "completes and waits for it. When the change ends the client walks the pending entries, and after looking at 0 "
        "confirms every complete head: 1 too, whose only copy is on the bookie that left."
    ),
    ours="The thread's four entries on the shipped writer: first all are forgotten and sent again, then heads are told.",
    switch="a writer that tells callers in the middle of forgetting the acknowledgements of replaced bookies",
    violates="I2",
)
def test_3005_quorum_broken_by_the_change(fault: bool) -> None:
    stage = Stage(["b0", "b1", "b2"], (2, 1, 1), writer=TellsBetweenUnsets if fault else WriterMachine)
    for _ in range(4):
        stage.append()
    stage.arrives("b1", 1)
    stage.fails("b1", 3)
    stage.arrives("b0", 0)
    stage.change(b1="b2")
    stage.check_copies()
    stage.rest_arrives()
    stage.check_copies()
    assert stage.told == [0, 1, 2, 3]


class WritesBeforeTheStoreAnswers(WriterMachine):
    """Takes a change for done when it has been asked for: it goes on with the new ensemble at once."""

    __slots__ = ()

    def replacements_chosen(self, chosen: Mapping[int, BookieId], now_ms: int) -> None:
        super().replacements_chosen(chosen, now_ms)
        if self.cas.asked is StoreRequest.WRITE:
            self.metadata_written(self.cas.version)


@incident(
    ref="issues/1591",
    title="Failures after the confirmation are repaired without waiting for the metadata",
    happened=(
        "3/3/2 and a ZooKeeper that takes no writes. b2 and b3 confirm entry 0; b1's error comes later and is put by. "
        "With entry 1 b1 is replaced in the background: entries go to b4 and are acknowledged while the compare-and-swap is still "
        "unanswered. The same happens to b2 and b3. In the end entries are acknowledged on b4, b5 and b6, and ZooKeeper "
        "names b1, b2 and b3: whoever recovers the ledger closes it without them."
    ),
    ours=(
        "The same failures with a silent store, then a recovery from the record as it is stored. The shipped writer "
        "acknowledges nothing until its compare-and-swap is answered."
    ),
    switch="a writer that goes on with the new ensemble before the store has answered",
    violates="I1",
)
def test_1591_deferred_failures(fault: bool) -> None:
    names = ["b1", "b2", "b3", "b4", "b5", "b6"]
    stage = Stage(names, (3, 3, 2), writer=WritesBeforeTheStoreAnswers if fault else WriterMachine)
    stage.append()
    stage.arrives("b2")
    stage.arrives("b3")
    assert stage.told == [0]
    for old, new in (("b1", "b4"), ("b2", "b5"), ("b3", "b6")):
        if stage.writer.ensemble[names.index(old)] == old:
            stage.loses(old)
        stage.append()
        if stage.choice is not None:
            stage.choose(**{old: new})
        for bookie in stage.writer.ensemble:
            while bookie not in names[: names.index(old) + 1] and any(
                add.bookie == bookie for add in stage.flying
            ):
                stage.arrives(bookie)
    recovery = stage.recover()
    recovery.finish()
    assert recovery.result is not None
    stage.check_end()
    stage.check_copies()
    assert stage.told == [0]


class ReplacesByDifference(WriterMachine):
    """Sends again what the difference of two ensembles says; a bookie that comes back in its own place is none."""

    __slots__ = ()

    def _return_slot(self, slot: int) -> None:
        self.change.come_back(slot, self.window.lac)


@incident(
    ref="issues/4459",
    title="A change that ends with the ensemble it began with sends nothing again",
    happened=(
        "When bookies restart, or under back-pressure, a change can end with the very same ensemble. What has to be sent "
        "again is computed as the difference of the two lists, which is empty: the adds that had failed are never sent, "
        "and every later add of the ledger waits behind them."
    ),
    ours=(
        "A bookie fails with an add that never left, no spare is there, and the same bookie comes back in its place. The "
        "shipped writer sends it everything that it has not acknowledged."
    ),
    switch="a writer that sends again by the difference of the ensembles",
    violates="F2",
)
def test_4459_the_same_ensemble_again(fault: bool) -> None:
    stage = Stage(["b1", "b2", "b3"], (3, 3, 2), writer=ReplacesByDifference if fault else WriterMachine)
    stage.append()
    stage.arrives("b1")
    stage.fails("b2")
    stage.change()
    assert stage.writer.absent == (1,)
    stage.writer.timer_fired(10_000)
    stage.writer.bookies_found([1], 10_000, spare=False)
    stage.listen()
    # The third bookie is gone for good by now.
    stage.fails("b3")
    stage.change()
    stage.rest_arrives()
    stage.check_answered()
    stage.check_copies()
    assert stage.told == [0]


class ReplacesTwice(WriterMachine):
    """Takes a late failure of a bookie that was replaced for a failure of its slot, and tells nobody at the end."""

    __slots__ = ()

    def add_failed(self, slot: int, bookie: BookieId, run: int, answer: Answer) -> None:
        if self.ensemble[slot] == bookie or self.status is not Status.WRITING:
            super().add_failed(slot, bookie, run, answer)
        else:
            self.status, self.change.status = Status.CHANGING, ChangeStatus.CHOOSING
            self.window.pause()

    def replacements_chosen(self, chosen: Mapping[int, BookieId], now_ms: int) -> None:
        if chosen or self.change._wanted(self.record.last_fragment.ensemble):
            super().replacements_chosen(chosen, now_ms)
        else:
            # Nothing was replaced: nothing to tell.
            self.status, self.change.status, self.window.paused = Status.WRITING, ChangeStatus.IDLE, False


@incident(
    ref="issues/4261",
    title="One crashed bookie is replaced twice and the caller waits for ever",
    happened=(
        '3-3-2, entries added one after another; bookie A loses its power. Its third answers come late: first "Bookie '
        'handle was not available", which replaces A, and a moment later "Bookie operation timeout" for older '
        "adds, which starts a second change for A. That one replaces nothing, so the path that tells callers is not "
        "taken, and the entry that became complete meanwhile is never told."
    ),
    ours="Two late failures of one bookie around its replacement: the second is about a bookie that is not there any more.",
    switch="a writer to which a late failure of a replaced bookie is a new change, and which then tells nobody",
    violates="F2",
)
def test_4261_replaced_twice(fault: bool) -> None:
    stage = Stage(["A", "B", "C", "D"], (3, 3, 2), writer=ReplacesTwice if fault else WriterMachine)
    late = []
    for entry_id in range(3):
        stage.append()
        stage.arrives("B", entry_id)
        stage.arrives("C", entry_id)
        late.append(next(add for add in stage.flying if add.bookie == "A"))
        stage.flying.remove(late[-1])
    stage.answered(late[0], Answer.UNREACHABLE)
    stage.append()
    stage.change(A="D")
    stage.arrives("B", 3)
    stage.answered(late[1], Answer.TIMED_OUT)
    stage.arrives("C", 3)
    stage.arrives("D", 3)
    if stage.writer.change.status is ChangeStatus.CHOOSING:
        stage.writer.replacements_chosen({}, 0)
        stage.listen()
    stage.check_answered()
    assert stage.told == [0, 1, 2, 3]


class TwoThreadsTell(WriterMachine):
    """A failure looks at the head on a thread of its own; while it does, answers leave the telling to it."""

    __slots__ = ("looking",)

    def add_failed(self, slot: int, bookie: BookieId, run: int, answer: Answer) -> None:
        if slot == 2 and not hasattr(self, "looking"):
            self.looking = True  # it has looked: the head was not complete. It has not returned yet.
        else:
            super().add_failed(slot, bookie, run, answer)

    def adds_acked(self, slot: int, bookie: BookieId, run: int) -> None:
        if getattr(self, "looking", False):
            self.looking = False  # the other thread is in there and will see to it
            self.window.pause()
        super().adds_acked(slot, bookie, run)
        self.window.paused = False


@incident(
    ref="pull/4557",
    title="Two threads look for completed adds, and neither tells",
    happened=(
        "3/3/2. A failed connection completes its adds on an I/O thread, not on the ledger's own thread, and while doing "
        "so also looks for completed heads of the queue, at the same time as the thread on which two good answers have "
        "just made the add complete. The queue is not made for two: the completed head stays in it and the writer is "
        "stuck."
    ),
    ours=(
        "The same answers in the same order. The shipped writer lives on one loop: an answer is counted and told in one "
        "step, and a failure tells nobody."
    ),
    switch="a writer in which a failure and an answer look for heads side by side",
    violates="F2",
)
def test_4557_two_threads(fault: bool) -> None:
    stage = Stage(["b1", "b2", "b3"], (3, 3, 2), writer=TwoThreadsTell if fault else WriterMachine)
    stage.append()
    stage.arrives("b1")
    stage.fails("b3")
    stage.arrives("b2")
    stage.change()
    stage.rest_arrives()
    stage.check_answered()
    assert stage.told == [0]


@incident(
    ref="issues/1967",
    title="The store did what was asked, and the answer was lost",
    happened=(
        "The ZooKeeper wrapper sends a request again after a lost connection. If the first one had succeeded the second "
        "is refused: the client takes its own success for somebody else's, gives up a ledger that it has just created, "
        "or goes on with an ensemble that is not the stored one."
    ),
    ours=(
        "The explorer, every interleaving of a writer, a recoverer and a compare-and-swap whose answer is lost: before callers hear "
        "anything the record is read again and the compare-and-swap settled."
    ),
    switch="a writer that goes on although its last compare-and-swap may still land",
    violates="I2",
)
def test_1967_the_answer_of_a_cas_is_lost(fault: bool) -> None:
    explored("may_go_on_after_unknown", fault=fault)
