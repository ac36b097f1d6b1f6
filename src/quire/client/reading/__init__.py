"""A ledger's reader: ranges, scans, tails, and what is said of an entry that nobody has."""
