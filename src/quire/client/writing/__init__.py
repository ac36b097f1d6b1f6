"""A ledger's writer, and how its ledger is made and ended."""
