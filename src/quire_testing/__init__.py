"""How Quire is checked: the explorer, the simulator, replays, crash images and histories.

A distribution of its own (`quire-log-testing`), built from the same repository. `quire` does not need it and does not import it,
except where the command line looks for `quire check`, `simulate` and `verify-history` (`quire/cli/testing.py`).

Source: `docs/decisions/033-one-room-for-testing.md`.
"""
