"""Bookies on this machine: one in this process, or a cluster of processes."""
