"""Each method and function of a shipped machine, replaced by one that raises, turns an exploration red.

An exploration of each world notes the first state from which each of them is called. The same exploration with the
method replaced comes to this state as well: nothing before it calls the method. So it is begun there.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import FunctionType

import pytest

from quire.core.bookie import boot, limbo_decisions
from quire.core.bookie.garbage import CollectorMachine
from quire.core.bookie.identity_lease import IdentityLeaseMachine
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.bookie.limbo_decisions import LimboDecisions
from quire.core.ledger import bundle_acks
from quire.core.ledger.bundle_acks import BundleAcks
from quire.core.ledger.closing import Closing
from quire.core.ledger.ensemble_change import EnsembleChange
from quire.core.ledger.reader import LacMachine, ReadMachine
from quire.core.ledger.record_cas import RecordCas
from quire.core.ledger.writer import RunWindow, WriterMachine
from quire.core.ledger.writer_waits import WriterWaits
from quire.core.log.cas import HeadCas
from quire.core.log.fencing import Fencing
from quire.core.log.machine import LogMachine
from quire.core.log.roll import Roll
from quire.core.log.trimming import TrimMachine
from quire.core.recovery.log_end_search import FenceAnswers, LogEndSearch, Votes
from quire.core.recovery.machine import RecoveryMachine
from quire.core.recovery.write_back import WriteBack
from quire_testing.explorer.bundle_parts import BundleConfiguration
from quire_testing.explorer.check import form_of, setting_of
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.directory_world import DirectoryConfiguration
from quire_testing.explorer.explorer import explore, way_to
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.switches import SHIPPED

PARTS = {
    "ledger": (
        WriterMachine,
        RunWindow,
        EnsembleChange,
        WriterWaits,
        RecordCas,
        Closing,
        RecoveryMachine,
        LogEndSearch,
        FenceAnswers,
        Votes,
        WriteBack,
        ReadMachine,
        LacMachine,
        BookieLedgerMachine,
        LimboDecisions,
        limbo_decisions,
        BundleAcks,
        bundle_acks,
    ),
    "log": (
        LogMachine,
        HeadCas,
        Fencing,
        Roll,
        TrimMachine,
    ),
    "collector": (CollectorMachine,),
    "directory": (IdentityLeaseMachine, boot),
}
WORLDS = {
    "ledger": (
        Configuration(2, 2, 2, 2, recoverers=0, crashes=2, journal=False, closes=True, named=True, clears=1),
        Configuration(2, 2, 2, 2, recoverers=0, timeouts=2, explicit_lac=True, readers=1, waits=True),
        Configuration(2, 2, 2, 2, entries=2, recoverers=0, crashes=1, journal=False),
        Configuration(3, 2, 2, 1, away=1),
        Configuration(2, 2, 2, 2, damages=1),
        Configuration(2, 2, 2, 2, deletions=1),
        Configuration(2, 2, 2, 2, timeouts=1, waits=True),
        Configuration(2, 2, 2, 1, recoverers=0, lost_swaps=1, closes=True),
        Configuration(3, 2, 2, 1, timeouts=1, absent=True),
        Configuration(
            2,
            2,
            2,
            1,
            entries=2,
            recoverers=0,
            timeouts=1,
            closes=True,
            drops=True,
            waits=True,
            guarantee=True,
        ),
        BundleConfiguration(2, 2, 2, 2, transit_damages=1),
    ),
    "log": (
        LogConfiguration(1, 3, 1, lost_swaps=1, closes=True, stages=1),
        LogConfiguration(2, 2, 1, trims=1),
        LogConfiguration(1, 3, 2, lost_swaps=1, trims=1),
    ),
    "collector": (CollectorConfiguration(mixed=True, full=1),),
    "directory": (DirectoryConfiguration(entries=1, starts=2),),
}
ASKED = "its driver asks it, and decides nothing by it"
LEADS_ALONE = "nobody but the handles changes the list (tests/unit/log/test_log_drivers.py)"
NO_PAGES = "a list of so few ledgers has no pages (tests/properties/test_log_list.py)"
NO_LACS = "a LAC beyond the end comes from a Java client's recovery (tests/golden/recovery)"
NO_TERMS = "ledgers have no terms (tests/check/test_streams.py)"
NO_TIME = "a machine of these worlds has no time (tests/properties/test_reader_properties.py)"
DISK = "its bookies' journals take everything (tests/unit/core/test_bookie_ledger.py)"
IDENTITY_LEASE = (
    "the world of directories has the look; the rest is of the registration (tests/unit/core/test_boot.py)"
)
NO_REGISTRATIONS = (
    "no bookie of these worlds has a registration that ends (tests/properties/test_writer_properties.py)"
)
NOT_CALLED = {
    ("WriteBack", "come_back"): NO_TERMS,
    ("WriterMachine", "bookie_left"): NO_REGISTRATIONS,
    ("WriterMachine", "left_bookies_asked"): NO_REGISTRATIONS,
    ("EnsembleChange", "left"): NO_REGISTRATIONS,
    ("WriterWaits", "still_answer"): NO_REGISTRATIONS,
    ("BundleAcks", "awaited"): ASKED,
    ("WriterMachine", "record"): ASKED,
    ("WriterMachine", "stage"): ASKED,
    ("WriterMachine", "waits_for"): ASKED,
    ("RunWindow", "lacking"): "only to say what the writer waits for",
    ("WriterMachine", "pending"): "only of a state without a next step, and there is none",
    ("WriterMachine", "holes"): ASKED,
    ("EnsembleChange", "holes_through"): ASKED,
    (
        "WriterMachine",
        "abandon",
    ): "a client that gives up is one whose steps are never taken (test_legality.py)",
    (
        "WriterMachine",
        "_not_writing",
    ): "no caller appends to a writer that has ended (test_writer_legality.py)",
    ("WriterWaits", "read_later"): "a store that answers nothing twice (tests/golden/writer)",
    ("RecoveryMachine", "lac"): "only the table under a counterexample shows it",
    ("RecoveryMachine", "length_unavailable"): "with fewer than Qa copies lost somebody has the last entry",
    ("LogEndSearch", "asks_again"): NO_LACS,
    ("LogEndSearch", "contradicted"): NO_LACS,
    ("LogEndSearch", "_until_votes_fall"): NO_TERMS,
    ("LogEndSearch", "_not_left_over"): NO_TERMS,
    ("Votes", "end_at"): NO_TERMS,
    ("ReadMachine", "timer_fired"): NO_TIME,
    ("ReadMachine", "_ask_beside"): NO_TIME,
    ("BookieLedgerMachine", "not_saved"): DISK,
    ("BookieLedgerMachine", "raise_term"): NO_TERMS,
    ("BookieLedgerMachine", "truncate"): NO_TERMS,
    ("BookieLedgerMachine", "_term_is_unknown"): NO_TERMS,
    ("BookieLedgerMachine", "not_deleted"): DISK,
    ("BookieLedgerMachine", "is_as_stored"): ASKED,
    (
        "BookieLedgerMachine",
        "explicit_lac_without_body",
    ): "the short way of `explicit_lac` (tests/unit/core/test_bookie_ledger.py)",
    ("LogMachine", "head"): ASKED,
    ("LogMachine", "rolling"): ASKED,
    ("LogMachine", "adoptions_wait"): ASKED,
    (
        "LogMachine",
        "create_failed",
    ): "a world whose ledgers have run out leaves its handle waiting (tests/golden)",
    ("LogMachine", "abandon"): "a client that gives up is one whose steps are never taken (test_legality.py)",
    ("LogMachine", "head_seen"): LEADS_ALONE,
    ("HeadCas", "learned"): LEADS_ALONE,
    ("TrimMachine", "page_deleted"): NO_PAGES,
    ("TrimMachine", "page_read"): NO_PAGES,
    ("TrimMachine", "log_deleted"): "nobody deletes the log (tests/unit/log)",
    (
        "CollectorMachine",
        "compare",
    ): "before the first pass; `begin` decides the same (tests/unit/core/test_garbage.py)",
    ("CollectorMachine", "watermark"): "no world has a clock (tests/unit/core/test_log_garbage.py)",
    ("IdentityLeaseMachine", "registration_lost"): IDENTITY_LEASE,
    ("IdentityLeaseMachine", "confirmed"): IDENTITY_LEASE,
    ("IdentityLeaseMachine", "replaced_by"): IDENTITY_LEASE,
}
"""What no world comes to, and why."""


class RaisedError(Exception):
    """What is in the method's place."""


def raises(*_args, **_kwargs):
    raise RaisedError


def short(place):
    return place.__name__.rpartition(".")[2]


def all_of(place):
    """Its own methods, properties and functions."""
    module = getattr(place, "__module__", place.__name__)
    for name, what in vars(place).items():
        own = isinstance(what, property) or (isinstance(what, FunctionType) and what.__module__ == module)
        if own and not name.startswith("__"):
            yield name, what


CASES = {
    (short(place), name): (place, name, what)
    for places in PARTS.values()
    for place in places
    for name, what in all_of(place)
}


def put(place, name, what, instead):
    """Replace a method; and a function also where it was imported by its name."""
    setattr(place, name, instead)
    if isinstance(place, type):
        return
    for module in list(sys.modules.values()):
        if module.__name__.startswith("quire") and vars(module).get(name) is what:
            setattr(module, name, instead)


class Noting:
    """A world, explored, that notes from which state each method that still waits is called first."""

    def __init__(self, configuration, waiting):
        self.configuration, self.here, self.came_from, self.found = configuration, None, {}, {}
        self._waiting = waiting
        for key in list(waiting):
            place, name, what = CASES[key]
            put(place, name, what, self._noted(key, what))
        self.setting = setting_of(configuration, SHIPPED, None)
        self.initial = self.setting.world.initial

    def _noted(self, key, what):
        plain = what.fget if isinstance(what, property) else what

        def first(*args, **kwargs):
            self.came_to(key)
            return plain(*args, **kwargs)

        return property(first) if isinstance(what, property) else first

    def came_to(self, key):
        if key in self._waiting:
            self._waiting.remove(key)
            self.found[key] = self.here
            self.restore(key)

    def restore(self, key):
        place, name, what = CASES[key]
        noted = vars(place)[name]
        put(place, name, noted, what)

    def successors(self, state):
        if not self._waiting - NOT_CALLED.keys():
            return []
        self.here = state
        return self.setting.world.successors(state)

    def violation_in(self, state):
        self.came_from[state], before = self.here, self.here
        self.here = state
        found = self.setting.violation_in(state)
        self.here = before
        return found

    def ways(self):
        """The steps that lead to where each method is called first: which of those that are possible."""
        world, form = self.setting.world, form_of(self.setting.world)
        try:
            result = explore(self, self.violation_in, canonical=form)
        finally:
            for key in self._waiting:
                self.restore(key)
        assert result.violation is None
        begin = [(None, world.initial())]
        paths = {}
        for key, state in self.found.items():
            path = begin if state is None else way_to(world, self.came_from, state, form, begin)
            paths[key] = [
                list(world.successors(before)).index((label, after))
                for (_, before), (label, after) in pairwise(path)
            ]
        return paths


def led(world, way):
    """The labels and states of a way through a world of its own: which of the next steps is taken each time.

    Their names would not do: two steps of one name may lead to different states.
    """
    path = [(None, world.initial())]
    for index in way:
        path.append(list(world.successors(path[-1][1]))[index])
    return path


@pytest.fixture(scope="module")
def ways():
    """For each method the world in which it is called first, and the way there."""
    found = {}
    for kind, configurations in WORLDS.items():
        waiting = {key for key, (place, _, _) in CASES.items() if place in PARTS[kind]}
        for configuration in configurations:
            ways = Noting(configuration, waiting).ways()
            found |= {key: (configuration, way) for key, way in ways.items()}
    return found


@pytest.mark.parametrize("key", [key for key in CASES if key not in NOT_CALLED], ids="-".join)
def test_a_method_that_raises_turns_an_exploration_red(monkeypatch, ways, key):
    configuration, way = ways[key]
    setting = setting_of(configuration, SHIPPED, None)
    begin = led(setting.world, way)
    place, name, what = CASES[key]
    instead = property(raises) if isinstance(what, property) else raises
    put(place, name, what, instead)
    try:
        with pytest.raises(RaisedError):
            explore(
                setting.world,
                setting.violation_in,
                canonical=form_of(setting.world),
                begin=begin,
                states_max=1,
            )
    finally:
        put(place, name, instead, what)


def test_what_is_not_called_is_what_stands_here(ways):
    assert CASES.keys() - ways.keys() == NOT_CALLED.keys()
