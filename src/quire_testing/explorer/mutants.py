"""The one table of mutants: each fix that is taken out once, whatever world shows it.

The explorer finds each of them (`check.py`); the replays play their counterexamples, the walks and the simulator look for
those that are in the machines and in the programs.

Source: docs/counterexamples.md, "All of them"; docs/decisions/README.md.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from quire_testing.explorer.bundle_mutants import BUNDLE_MUTANTS
from quire_testing.explorer.bundle_parts import BundleConfiguration
from quire_testing.explorer.collector_mutants import COLLECTOR_MUTANTS
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.directory_mutants import DIRECTORY_MUTANTS
from quire_testing.explorer.directory_world import DirectoryConfiguration
from quire_testing.explorer.guarantee_mutants import GUARANTEE_MUTANTS
from quire_testing.explorer.ledger_mutants import LEDGER_MUTANTS, LOSS_MUTANTS, READER_MUTANTS
from quire_testing.explorer.log_mutants import LOG_MUTANTS
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.mutant import Mutant
from quire_testing.explorer.quorum_mutants import QUORUM_MUTANTS
from quire_testing.explorer.repair_mutants import OVER_REPLICATION_MUTANTS, REPAIR_MUTANTS
from quire_testing.explorer.stream_mutants import FENCING_MUTANTS, STREAM_MUTANTS
from quire_testing.explorer.stream_parts import StreamConfiguration

AnyConfiguration: TypeAlias = (
    Configuration
    | LogConfiguration
    | CollectorConfiguration
    | DirectoryConfiguration
    | StreamConfiguration
    | BundleConfiguration
)
AnyMutant: TypeAlias = Mutant[AnyConfiguration]

TABLES: tuple[tuple[AnyMutant, ...], ...] = (
    LEDGER_MUTANTS,
    LOSS_MUTANTS,
    QUORUM_MUTANTS,
    GUARANTEE_MUTANTS,
    READER_MUTANTS,
    LOG_MUTANTS,
    COLLECTOR_MUTANTS,
    DIRECTORY_MUTANTS,
    REPAIR_MUTANTS,
    OVER_REPLICATION_MUTANTS,
    BUNDLE_MUTANTS,
    STREAM_MUTANTS,
    FENCING_MUTANTS,
)
"""What shows in one world, or is of one kind, stands together."""

MUTANTS: Final[dict[str, AnyMutant]] = {mutant.name: mutant for table in TABLES for mutant in table}
"""By name, in the order in which the documents show them."""

_OF_MACHINES: tuple[tuple[AnyMutant, ...], ...] = (LEDGER_MUTANTS, REPAIR_MUTANTS, STREAM_MUTANTS)

OF_MACHINES: Final[dict[str, AnyMutant]] = {mutant.name: mutant for table in _OF_MACHINES for mutant in table}
"""Those that walks and whole programs are made with: fixes of writers, recoverers, take-overs, repairers and bookies."""

REPLAYED: Final[dict[str, Mutant[Configuration]]] = {
    mutant.name: mutant for mutant in (*LEDGER_MUTANTS, *QUORUM_MUTANTS, *GUARANTEE_MUTANTS, *REPAIR_MUTANTS)
}
"""Those whose counterexamples client and bookie programs play."""

OF_LOGS: Final[dict[str, Mutant[LogConfiguration]]] = {mutant.name: mutant for mutant in LOG_MUTANTS}
"""Those whose counterexamples log programs play."""
