"""What holds for every test: Hypothesis judges results, never how long they took on a busy machine.

Two workers share the tests (`make test`). A file's tests stay together, since they share what they set up; so do all
that need Spark, and all that need Java peers or etcd, which take long to start.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from support.rounds import PROOF

settings.register_profile(
    "quire",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not PROOF,
)
settings.load_profile("quire")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts this in the background has Ctrl-C ignored, and the programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = ("spark", "interop")
"""Markers of tests that share one expensive thing."""
FIRST = ("spark", "interop", "explore", "faults")
"""What takes longest begins first, so that neither worker is left alone with it at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Say which tests one worker runs, and in which order they come."""
    for item in items:
        shared = next((name for name in SHARED if item.get_closest_marker(name)), None)
        item.add_marker(pytest.mark.xdist_group(shared or item.location[0]))
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(
        key=lambda item: min((ranks[m.name] for m in item.iter_markers() if m.name in ranks), default=9)
    )
