"""The world of two ledgers whose runs travel in bundles: what one frame, one bookie and one client do for both.

Each ledger has the world of one ledger, with its writer, its recoverer and its record. Here is what joins them. A bookie
judges both rows of a bundle in one step, so that a fence sees both or comes before them, and it crashes under both. Its
responses come in any parts and in any order. The client counts them for both rows (`BundleAcks`), and each writer gets
what is delivered to it; when something happens to one ledger alone, every bundle is dissolved in the same step, and from
then on a response goes to its writer as it comes.

What was sent to a bookie that a writer gave up may still arrive, and be answered, at any time, or never.

Source: `core/ledger/bundle_acks.py`; docs/formats/native-protocol.md, "Bundles"; docs/decisions/049-one-request-for-many-ledgers.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from quire.core.answers import Answer
from quire.core.ledger.bundle_acks import BundleAcks, Delivery
from quire_testing.explorer.bundle_parts import (
    LEDGERS,
    BundleConfiguration,
    BundleState,
    OneLedger,
    SentBundle,
)
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.invariants import NAMES, Violation
from quire_testing.explorer.snapshot import clone, state_of
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.symmetry import Renaming
from quire_testing.explorer.tables import Label, Table

BundleMove = tuple[Label, BundleState]

BUNDLE_INVARIANTS: Final = {
    "O": "no run of a ledger is sent to a bookie behind a later one, but for one that is sent again",
}

OVER: Final = -1


class BundleWorld:
    """Every state that two ledgers with runs in the same bundles can come to."""

    def __init__(
        self,
        configuration: BundleConfiguration,
        switches: Switches = SHIPPED,
        invariants: Sequence[str] = NAMES,
    ) -> None:
        self.configuration = configuration
        self.switches = switches
        names = [name for name in invariants if name not in BUNDLE_INVARIANTS]
        self.ledgers = tuple(OneLedger(name, configuration, switches, names) for name in LEDGERS)
        self.turns = configuration.turns.split("-")
        self.acks: Table[BundleAcks] = Table(state_of)

    def initial(self) -> BundleState:
        """Both ledgers are there, and nothing is written."""
        x, y = (ledger.initial() for ledger in self.ledgers)
        c = self.configuration
        return BundleState((x, y), (), 0, c.failures, c.leaves, c.fences)

    def successors(self, state: BundleState) -> list[BundleMove]:
        """Every next step: a label and the state after it."""
        moves: list[BundleMove] = []
        for which, ledger in enumerate(self.ledgers):
            at = state.ledgers[which]
            for label, after in ledger.remembered(ledger.own, at):
                moves += self._then(state, label, {which: after})
        if state.turn < len(self.turns):
            moves += self._turn(state)
        for bookie in range(self.configuration.bookies):
            moves += self._takes(state, bookie)
            moves += self._responds(state, bookie)
            moves += self._of_disk(state, bookie)
            if state.failures:
                moves += self._fails(state._replace(failures=state.failures - 1), bookie)
            x = self.ledgers[0]
            if state.leaves:
                for label, after in x.remembered(x.left, state.ledgers[0], bookie):
                    moves += self._then(state._replace(leaves=state.leaves - 1), label, {0: after})
            if state.fences:
                for label, after in x.remembered(x.fenced, state.ledgers[0], bookie):
                    moves += self._then(state._replace(fences=state.fences - 1), label, {0: after})
        return moves

    # --- the client sends ------------------------------------------------------------------------------------------

    def _turn(self, state: BundleState) -> Iterator[BundleMove]:
        """What is appended in a turn leaves at its end, in a bundle where both have something for the same bookies."""
        letters, (x, y) = self.turns[state.turn], self.ledgers
        label = Label("client", f"appends {letters}", kind="append")
        for said, ledgers in self._appended(state.ledgers, letters[: len(LEDGERS)]):
            after = state._replace(ledgers=ledgers, turn=state.turn + 1)
            pairs = list(zip(self.ledgers, state.ledgers, ledgers, strict=True))
            ways = {ledger.sent(before, now) for ledger, before, now in pairs}
            if len(ways) == 1 and letters[: len(LEDGERS)] == LEDGERS and (way := ways.pop()):
                runs = [ledger.writer(now).window.next_run - 1 for ledger, _, now in pairs]
                acks = self.switches.bundle(len(LEDGERS), len(way), self.configuration.ack_quorum)
                bundle = SentBundle(
                    state.turn,
                    (runs[0], runs[1]),
                    way,
                    sum(1 << bookie for bookie in way),
                    (x.ensemble(ledgers[0]), y.ensemble(ledgers[1])),
                    self.acks.number(acks),
                )
                after = after._replace(bundles=(*state.bundles, bundle))
            for more, last in self._appended(ledgers, letters[len(LEDGERS) :]):
                done = after._replace(ledgers=last)
                if letters[len(LEDGERS) :] and self.switches.bundles == "overtakes":
                    done = done._replace(ledgers=(self.ledgers[0].overtaken(last[0]), last[1]))
                for ledger, before, now in zip(self.ledgers, state.ledgers, done.ledgers, strict=True):
                    if not ledger.is_ordered(before, now):
                        done = done._replace(fault=f"a run of {ledger.name} left before an earlier one")
                yield from self._then(state, label._replace(said=(*said, *more)), {}, done)

    def _appended(
        self, ledgers: tuple[int, int], letters: str
    ) -> Iterator[tuple[tuple[str, ...], tuple[int, int]]]:
        found: list[tuple[tuple[str, ...], tuple[int, int]]] = [((), ledgers)]
        for letter in letters:
            which = LEDGERS.index(letter)
            ledger = self.ledgers[which]
            found = [
                ((*said, *_of(ledger.name, label)), _put(now, which, after))
                for said, now in found
                for label, after in ledger.remembered(ledger.appends, now[which])
                or [(Label("client", ""), now[which])]
            ]
        yield from found

    # --- a bookie --------------------------------------------------------------------------------------------------

    def _takes(self, state: BundleState, bookie: int) -> Iterator[BundleMove]:
        """The next frame reaches a bookie: all of a bundle at once."""
        heads = [ledger.head(at, bookie) for ledger, at in zip(self.ledgers, state.ledgers, strict=True)]
        for which, (ledger, head) in enumerate(zip(self.ledgers, heads, strict=True)):
            at = state.ledgers[which]
            index = self._bundle_of(state, which, head, bookie)
            if head is None:
                continue
            if index is None:
                for label, after in ledger.remembered(ledger.taken, at, bookie):
                    yield from self._then(state, _named(ledger.name, label), {which: after})
                for label, after in ledger.remembered(ledger.damaged, at, bookie):
                    yield from self._then(state, _named(ledger.name, label), {which: after})
            elif which == 0 and state.bundles[index].runs[1] == heads[1]:
                yield from self._takes_bundle(state, bookie, index)

    def _bundle_of(self, state: BundleState, which: int, run: int | None, bookie: int) -> int | None:
        """The index of the bundle that brings a run to a bookie."""
        for index, bundle in enumerate(state.bundles):
            if bundle.runs[which] == run and bundle.untaken >> bookie & 1:
                return index
        return None

    def _takes_bundle(self, state: BundleState, bookie: int, index: int) -> Iterator[BundleMove]:
        bundle = state.bundles[index]
        x, y = self.ledgers
        at_x, at_y = state.ledgers
        was_judged = bundle.judged >> bookie & 1
        if self.switches.bundles == "judged when collected" and not was_judged:
            admitted = all(
                ledger.remembered(ledger.admits, at, bookie)
                for ledger, at in zip(self.ledgers, state.ledgers, strict=True)
            )
            if admitted:
                judged = bundle._replace(judged=bundle.judged | 1 << bookie)
                label = Label(bookie_name(bookie), f"collects and judges bundle {bundle.turn}", kind="bundle")
                yield label, state._replace(bundles=_put(state.bundles, index, judged))
                return
        after = state._replace(bundles=_put(state.bundles, index, bundle.gone_to(bookie)))
        command = f"takes bundle {bundle.turn}"
        if was_judged:
            of_x, of_y = (
                ledger.remembered(ledger.stored, at, bookie)
                for ledger, at in zip(self.ledgers, state.ledgers, strict=True)
            )
        else:
            of_x = x.remembered(x.taken, at_x, bookie) + x.remembered(x.damaged, at_x, bookie)
            of_y = y.remembered(y.taken, at_y, bookie)
        for label_x, after_x in of_x:
            for label_y, after_y in of_y:
                damaged = ", X's row is damaged" if label_x.kind == "transit damage" else ""
                said = (*_of("X", label_x), *_of("Y", label_y))
                label = Label(bookie_name(bookie), command + damaged, said, "client", label_x.kind)
                yield from self._then(state, label, {0: after_x, 1: after_y}, after)

    def _of_disk(self, state: BundleState, bookie: int) -> Iterator[BundleMove]:
        """A sync for both ledgers, or a crash under both."""
        x, y = self.ledgers
        at_x, at_y = state.ledgers
        of_x, of_y = x.remembered(x.synced, at_x, bookie), y.remembered(y.synced, at_y, bookie)
        if of_x or of_y:
            after = {}
            said: tuple[str, ...] = ()
            for which, moves in enumerate((of_x, of_y)):
                for label, there in moves:
                    after[which] = there
                    said = (*said, *_of(LEDGERS[which], label))
            yield from self._then(state, Label(bookie_name(bookie), "syncs", said, kind="sync"), after)
        crashes = zip(
            x.remembered(x.crashed, at_x, bookie), y.remembered(y.crashed, at_y, bookie), strict=True
        )
        for (label, after_x), (_, after_y) in crashes:
            bundles = tuple(bundle.gone_to(bookie) for bundle in state.bundles)
            yield from self._then(state, label, {0: after_x, 1: after_y}, state._replace(bundles=bundles))

    def _fails(self, state: BundleState, bookie: int) -> Iterator[BundleMove]:
        """Both writers give a bookie up in one turn."""
        x, y = self.ledgers
        for label_x, after_x in x.remembered(x.lost, state.ledgers[0], bookie):
            for label_y, after_y in y.remembered(y.lost, state.ledgers[1], bookie):
                said = (*_of("X", label_x), *_of("Y", label_y))
                label = Label("client", f"both lose {bookie_name(bookie)}", said, kind="timeout")
                yield from self._then(state, label, {0: after_x, 1: after_y})

    # --- the client gets responses ---------------------------------------------------------------------------------

    def _responds(self, state: BundleState, bookie: int) -> Iterator[BundleMove]:
        """Responses of a bookie reach the client."""
        arrivals: dict[int, list[int]] = {}
        name = bookie_name(bookie)
        for which, ledger in enumerate(self.ledgers):
            at = state.ledgers[which]
            for run, answer in ledger.remembered(ledger.responses, at, bookie):
                index = self._counted(state, which, run, bookie)
                if index is not None and answer is Answer.OK:
                    bundle = state.bundles[index]
                    if self.acks.parts[bundle.acks].lacks(bundle.bookies.index(bookie), which):
                        arrivals.setdefault(index, []).append(which)
                    continue
                text = f"gets {answer.name} to {ledger.name}'s run {run} from {name}"
                if index is not None:  # refused: the bundle is dissolved before anything is done about it
                    for said, dissolved in self._dissolved(state):
                        now = dissolved.ledgers[which]
                        for label, after in ledger.remembered(ledger.hears, now, bookie, run):
                            ready = Label(
                                "client", text, (*said, *_of(ledger.name, label)), name, "hears refusal"
                            )
                            yield from self._then(dissolved, ready, {which: after})
                    continue
                for label, after in ledger.remembered(ledger.hears, at, bookie, run):
                    ready = Label("client", text, _of(ledger.name, label), name, "hears alone")
                    yield from self._then(state, ready, {which: after})
        for index, rows in arrivals.items():
            for part in [[row] for row in rows] + ([rows] if len(rows) > 1 else []):
                yield from self._arrives(state, index, bookie, part)

    def _counted(self, state: BundleState, which: int, run: int, bookie: int) -> int | None:
        """The index of the bundle by which a bookie's response to a run is counted, if it is by one."""
        for index, bundle in enumerate(state.bundles):
            if bundle.runs[which] == run and bundle.acks != OVER and bookie in bundle.bookies:
                return index
        return None

    def _arrives(self, state: BundleState, index: int, bookie: int, rows: list[int]) -> Iterator[BundleMove]:
        """A part of a bookie's response that says OK."""
        bundle = state.bundles[index]
        acks = clone(self.acks.parts[bundle.acks])
        deliveries = acks.stored(bundle.bookies.index(bookie), rows[0], len(rows))
        acks.check()
        counted = bundle._replace(acks=OVER if acks.is_complete else self.acks.number(acks))
        after = state._replace(bundles=_put(state.bundles, index, counted))
        whose = " and ".join(LEDGERS[row] for row in rows)
        label = Label(
            "client",
            f"gets OK to {whose} of bundle {bundle.turn} from {bookie_name(bookie)}",
            (),
            bookie_name(bookie),
            "hears rows",
        )
        for said, delivered in self._delivered(after, bundle, deliveries):
            if acks.is_complete:
                delivered = self._forgotten(delivered, bundle)  # noqa: PLW2901
            yield from self._then(state, label._replace(said=said), {}, delivered)

    def _forgotten(self, state: BundleState, bundle: SentBundle) -> BundleState:
        """With its last response a bundle is over: a run that has its ack quorum gets no more acknowledgements from it."""
        for row, (ledger, run) in enumerate(zip(self.ledgers, bundle.runs, strict=True)):
            after = ledger.remembered(ledger.forgotten, state.ledgers[row], bundle.bookies, run)
            state = state._replace(ledgers=_put(state.ledgers, row, after))
        return state

    def _delivered(
        self, state: BundleState, bundle: SentBundle, deliveries: Sequence[Delivery]
    ) -> Iterator[tuple[tuple[str, ...], BundleState]]:
        """Rows get the acknowledgements of some bookies."""
        found: list[tuple[tuple[str, ...], BundleState]] = [((), state)]
        for delivery in deliveries:
            some = [bookie for tag, bookie in enumerate(bundle.bookies) if delivery.bookies >> tag & 1]
            for row in range(delivery.first, delivery.first + delivery.rows):
                found = [each for one in found for each in self._confirmed(*one, row, bundle, tuple(some))]
        yield from found

    def _confirmed(
        self,
        said: tuple[str, ...],
        state: BundleState,
        row: int,
        bundle: SentBundle,
        bookies: tuple[int, ...],
    ) -> Iterator[tuple[tuple[str, ...], BundleState]]:
        ledger, run, ensemble = self.ledgers[row], bundle.runs[row], bundle.ensembles[row]
        line = f"{ledger.name} gets the acknowledgement of {' '.join(map(bookie_name, bookies))}"
        for label, after in ledger.remembered(ledger.confirm, state.ledgers[row], bookies, ensemble, run):
            more = (line, *_of(ledger.name, label))
            yield (*said, *more), state._replace(ledgers=_put(state.ledgers, row, after))

    # --- what comes of a step --------------------------------------------------------------------------------------

    def _then(
        self, before: BundleState, label: Label, ledgers: dict[int, int], state: BundleState | None = None
    ) -> Iterator[BundleMove]:
        """The state after a step. Where something has happened to one ledger alone, all bundles are dissolved in it."""
        state = before if state is None else state
        for which, after in ledgers.items():
            state = state._replace(ledgers=_put(state.ledgers, which, after))
        if self.configuration.drops:
            state = self._given_up(state)
        if any(map(self._is_apart, self.ledgers, before.ledgers, state.ledgers)):
            for said, dissolved in self._dissolved(state):
                yield label._replace(said=(*label.said, *said)), self._tidied(dissolved)
            return
        yield label, self._tidied(state)

    def _given_up(self, state: BundleState) -> BundleState:
        """A frame of which one writer gave up its row is dropped as a whole."""
        for index, bundle in enumerate(state.bundles):
            for bookie in bundle.bookies:
                pairs = list(enumerate(zip(self.ledgers, bundle.runs, strict=True)))
                left = [
                    which
                    for which, (ledger, run) in pairs
                    if ledger.awaits(state.ledgers[which], bookie, run)
                ]
                if not bundle.untaken >> bookie & 1 or len(left) == len(pairs):
                    continue
                for which in left:
                    ledger, run = self.ledgers[which], bundle.runs[which]
                    after = ledger.given_up(state.ledgers[which], bookie, run)
                    state = state._replace(ledgers=_put(state.ledgers, which, after))
                bundle = bundle._replace(untaken=bundle.untaken & ~(1 << bookie))  # noqa: PLW2901
                state = state._replace(bundles=_put(state.bundles, index, bundle))
        return state

    def _is_apart(self, ledger: OneLedger, before: int, after: int) -> bool:
        """Whether something has happened to a ledger alone."""
        return before != after and ledger.remembered(ledger.alone, before) != ledger.remembered(
            ledger.alone, after
        )

    def _dissolved(self, state: BundleState) -> Iterator[tuple[tuple[str, ...], BundleState]]:
        """Every bundle is dissolved: what has not reached its rows does now."""
        found: list[tuple[tuple[str, ...], BundleState]] = [((), state)]
        for index, bundle in enumerate(state.bundles):
            if bundle.acks == OVER:
                continue
            acks = clone(self.acks.parts[bundle.acks])
            deliveries = acks.dissolve()
            alone = bundle._replace(acks=OVER)
            found = [
                ((*said, f"bundle {bundle.turn} is dissolved", *more), there)
                for said, now in found
                for more, there in self._delivered(
                    now._replace(bundles=_put(now.bundles, index, alone)), bundle, deliveries
                )
            ]
        yield from found

    def _tidied(self, state: BundleState) -> BundleState:
        """Without the bundles of which nothing can come any more."""
        kept = []
        for bundle in state.bundles:
            counts = bundle.acks != OVER and any(
                ledger.waits_for(at, run)
                for ledger, at, run in zip(self.ledgers, state.ledgers, bundle.runs, strict=True)
            )
            if counts or bundle.untaken:
                kept.append(bundle if counts else bundle._replace(acks=OVER, ensembles=((), ())))
        return state._replace(bundles=tuple(kept)) if state.bundles else state

    # --- for people ------------------------------------------------------------------------------------------------

    def rows(self, state: BundleState) -> list[tuple[str, str]]:
        """Bundles of a state, for the table under a counterexample; each ledger has one of its own."""
        return [
            (
                f"bundle {bundle.turn}",
                f"to {' '.join(map(bookie_name, bundle.bookies))}, "
                + ("dissolved, or confirmed" if bundle.acks == OVER else "counted for both"),
            )
            for bundle in state.bundles
        ]


class BundleForm:
    """Names a state's representative, as `Symmetry` does: one renaming for both ledgers and the bundles."""

    def __init__(self, world: BundleWorld) -> None:
        self._world = world
        x, y = (ledger.symmetry._renamings for ledger in world.ledgers)
        assert x == y
        self._renamings = x
        self._bundles: dict[tuple[SentBundle, ...], list[tuple[SentBundle, ...]]] = {}

    def __call__(self, state: BundleState) -> BundleState:
        """The state that stands for this one."""
        if len(self._renamings) == 1:
            return state
        (x, y), (at_x, at_y) = self._world.ledgers, state.ledgers
        bundles = self._bundles.get(state.bundles)
        if bundles is None:
            bundles = self._bundles[state.bundles] = [
                tuple(self._renamed(bundle, renaming) for bundle in state.bundles)
                for renaming in self._renamings
            ]
        best = min(zip(x.remembered(x.forms, at_x), y.remembered(y.forms, at_y), bundles, strict=True))
        return state._replace(ledgers=best[:2], bundles=best[2])

    def _renamed(self, bundle: SentBundle, renaming: Renaming) -> SentBundle:
        names, slots = renaming
        order = sorted(range(len(bundle.bookies)), key=lambda number: names[bundle.bookies[number]])
        acks = bundle.acks
        if acks != OVER:
            other = clone(self._world.acks.parts[acks])
            other._stored = [other._stored[number] for number in order]
            other._delivered = [other._delivered[number] for number in order]
            acks = self._world.acks.number(other)
        return bundle._replace(
            bookies=tuple(names[bundle.bookies[number]] for number in order),
            untaken=_bits_renamed(bundle.untaken, names),
            ensembles=(
                _ensemble_renamed(bundle.ensembles[0], names, slots),
                _ensemble_renamed(bundle.ensembles[1], names, slots),
            ),
            acks=acks,
            judged=_bits_renamed(bundle.judged, names),
        )


class BundleWatch:
    """Looks at states of such a world: each ledger keeps what one ledger promises, and no run overtakes another."""

    def __init__(self, world: BundleWorld, names: Sequence[str]) -> None:
        self._world = world
        self._names = frozenset(names)

    def __call__(self, state: BundleState) -> Violation | None:
        """The first violation in a state, if there is one that is looked for."""
        if state.fault and "O" in self._names:
            return Violation("O", state.fault)
        for ledger, at in zip(self._world.ledgers, state.ledgers, strict=True):
            if at not in ledger.violations:
                ledger.violations[at] = ledger.watch(ledger.states.parts[at])
            if found := ledger.violations[at]:
                return Violation(found.invariant, f"{ledger.name}: {found.text}")
        return None

    def deadlock(self, state: BundleState) -> Violation | None:
        """Asked of a state without a next step."""
        for ledger, at in zip(self._world.ledgers, state.ledgers, strict=True):
            found = ledger.watch.deadlock(ledger.states.parts[at])
            if found is not None:
                return Violation(found.invariant, f"{ledger.name}: {found.text}")
        return None


def _put(some: Any, index: int, value: Any) -> Any:
    return (*some[:index], value, *some[index + 1 :])


def _of(name: str, label: Label) -> tuple[str, ...]:
    return tuple(f"{name}: {line}" for line in label.said)


def _named(name: str, label: Label) -> Label:
    return label._replace(command=f"{label.command}, of {name}")


def _ensemble_renamed(
    ensemble: tuple[int, ...], names: tuple[int, ...], slots: tuple[int, ...]
) -> tuple[int, ...]:
    renamed = list(ensemble)
    for slot, bookie in enumerate(ensemble):
        renamed[slots[slot]] = names[bookie]
    return tuple(renamed)


def _bits_renamed(bits: int, names: tuple[int, ...]) -> int:
    return sum(1 << names[bookie] for bookie in range(bits.bit_length()) if bits >> bookie & 1)
