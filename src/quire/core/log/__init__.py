"""The log: an ordered list of ledgers, by compare-and-swap of its head."""
