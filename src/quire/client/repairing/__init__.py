"""Looks after the copies of ledgers: compared, copied, restored."""
