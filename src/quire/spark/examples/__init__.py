"""Pipelines to read and to run: each is a command, and a test runs it."""
