"""Bytes: entries and digests, runs, frames, records of the metadata store. No sockets, no files, no state."""
