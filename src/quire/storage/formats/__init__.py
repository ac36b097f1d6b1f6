"""The bytes of a bookie's files: segments, footers, the state file and the bodies of records."""
