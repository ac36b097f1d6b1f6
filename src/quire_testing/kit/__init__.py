"""What the rooms of this package share: a disk in memory, one that fails, a transport, and a worker and a clock by steps."""
