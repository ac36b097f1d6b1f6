"""A ledger's reader: ranges, scans, tails, and what is said of an entry that no bookie has."""
