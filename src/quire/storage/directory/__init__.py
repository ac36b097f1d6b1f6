"""A bookie's directory: who owns it, whose it is, and its small files."""
