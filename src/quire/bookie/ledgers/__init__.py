"""A bookie's ledgers: each request is decided by a machine and handed to storage."""
