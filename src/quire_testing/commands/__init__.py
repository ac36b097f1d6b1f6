"""The commands of `quire` that this package adds: `check`, `simulate` and `verify-history`."""

from quire_testing.commands.check import check
from quire_testing.commands.simulate import simulate
from quire_testing.commands.verify_history import verify_history

__all__ = ["check", "simulate", "verify_history"]
