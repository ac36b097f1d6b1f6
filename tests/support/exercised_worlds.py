"""The worlds that together come to every rule, message and move of a machine, as `tests/check/test_exercised.py` wants it."""

from quire_testing.explorer.bundle_parts import BundleConfiguration
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.log_parts import LogConfiguration

WORLDS = (
    Configuration(2, 2, 2, 2, crashes=1, closes=True),
    Configuration(2, 2, 2, 2, breaks=1),
    Configuration(3, 2, 2, 2, timeouts=1, absent=True, explicit_lac=True),
    Configuration(2, 2, 2, 1, timeouts=1, lost_swaps=1, closes=True, reruns=1),
    Configuration(2, 2, 2, 2, damages=1),
    Configuration(2, 2, 2, 2, window=2),
    Configuration(3, 2, 2, 1, timeouts=1, lost_swaps=1, absent=True),
    Configuration(2, 2, 2, 2, deletions=1),
    Configuration(2, 2, 2, 1, timeouts=1, recoverers=0, explicit_lac=True, readers=1),
    Configuration(3, 2, 2, 1, timeouts=1, breaks=1, explicit_lac=True, recoverers=0, readers=1),
    Configuration(3, 2, 2, 2, entries=2, timeouts=1, deletions=1, recoverers=0, closes=True),
    Configuration(2, 2, 2, 1, away=1),
    Configuration(3, 2, 2, 1, entries=2, timeouts=1, recoverers=0, closes=True, guarantee=True),
    Configuration(2, 2, 2, 1, recoverers=0, closes=True, guarantee=True, transit_damages=1),
    Configuration(2, 2, 2, 2, crashes=1, journal=False, clears=1),
    Configuration(2, 2, 2, 2, timeouts=1, waits=True),
    Configuration(2, 2, 2, 2, recoverers=0, crashes=2, journal=False, closes=True, named=True, clears=1),
    Configuration(3, 2, 2, 2, lost_swaps=1, timeouts=1, recoverers=0, losses=1, repairers=1, closed=True),
    Configuration(3, 2, 2, 2, recoverers=0, losses=1, repairers=2, closed=True),
    Configuration(3, 2, 2, 2, recoverers=0, losses=1, returns=1, repairers=1, closed=True, collects=True),
    Configuration(3, 2, 2, 2, entries=2, recoverers=0, losses=1, repairers=1, closed=True, collects=True),
    Configuration(3, 2, 2, 2, deletions=1, recoverers=0, losses=1, repairers=1, closed=True),
    Configuration(3, 2, 2, 2, entries=2, recoverers=0, losses=1, repairers=1, changed=True),
    Configuration(3, 3, 3, 2, crashes=1, journal=False, recoverers=0, repairers=1, closed=True),
)
LOGS = (
    LogConfiguration(2, 3, 1),
    LogConfiguration(1, 3, 2, lost_swaps=1, trims=1),
    LogConfiguration(1, 3, 1, lost_swaps=1, closes=True, stages=1),
    LogConfiguration(2, 2, 1, trims=1),
)
COLLECTORS = (
    CollectorConfiguration(hands=1, accepts=1, lost=1, backups=2, restores=2),
    CollectorConfiguration(ours=True, lives=2, crashes=1, expires=True),
    CollectorConfiguration(mixed=True, full=1),
)
BUNDLES = (
    BundleConfiguration(2, 2, 2, 2, "XYX", transit_damages=1, closes=True),
    BundleConfiguration(3, 2, 2, 2, timeouts=1),
)
