"""Repair of a cluster's ledgers: what is missing, which bookies take it, and how fast it is copied."""
