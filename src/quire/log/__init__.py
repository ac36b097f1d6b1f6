"""Logs: endless sequences of records over ledgers. Built on the client, below Spark and the command line."""
