"""The store in one SQLite file: the embedded default, for the processes of one machine."""
