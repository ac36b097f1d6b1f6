"""Bytes of the disk come back: what holds them, what is relocated, merged or dropped."""
