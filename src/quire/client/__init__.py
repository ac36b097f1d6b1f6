"""The client of a cluster: writes, reads, recovers and repairs ledgers and streams."""
