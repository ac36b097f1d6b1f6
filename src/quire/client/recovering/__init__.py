"""Performs recoveries."""
