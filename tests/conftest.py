"""What holds for every test: Hypothesis judges results, never how long they took on a busy machine."""

from __future__ import annotations

import signal

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
