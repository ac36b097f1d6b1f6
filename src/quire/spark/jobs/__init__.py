"""Packaged Spark jobs: plain functions that take a session, and commands that print one JSON line."""
