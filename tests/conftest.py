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

SHARED = ("tests/spark/", "tests/interop/")
"""Folders whose tests share one expensive thing."""
FIRST = (*SHARED, "tests/check/test_continuous.py", "tests/faults/", "tests/unit/test_docs.py")
"""What takes longest begins first, so that neither worker is left alone with it at the end."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Say which tests one worker runs, and in which order they come; a wrapper, so before the workers look."""
    for item in items:
        file = item.location[0]
        group = next((folder for folder in SHARED if file.startswith(folder)), file)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(
        key=lambda item: next(
            (rank for rank, start in enumerate(FIRST) if item.location[0].startswith(start)), len(FIRST)
        )
    )
    return (yield)
