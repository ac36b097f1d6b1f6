"""`quire ledger` and `quire stream`: commands about single ledgers."""
