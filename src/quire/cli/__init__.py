"""The command line: composes everything, and is the only place that picks implementations."""
