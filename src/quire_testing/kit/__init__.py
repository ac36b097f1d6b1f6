"""What the rooms of this package share: a disk in memory, one that fails, and a worker and a clock that wait for orders."""
