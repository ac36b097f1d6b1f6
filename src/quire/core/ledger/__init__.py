"""The machines of one ledger: its writer, its ensemble changes, its end and its readers."""
