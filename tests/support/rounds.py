"""How many rounds a test runs: few in `make test`, all of them in `make proof`."""

import os

PROOF = os.environ.get("QUIRE_PROOF") == "1"


def rounds(reduced, full):
    """The number for this run; QUIRE_ROUNDS says another."""
    return int(os.environ.get("QUIRE_ROUNDS", full if PROOF else reduced))
