"""Unbounded ledgers, and taking them over."""
