"""Segment files: their rows and footers, what they hold, and what they are read back as."""
