"""Bytes of the disk come back: what holds them, what is carried on, merged or dropped."""
