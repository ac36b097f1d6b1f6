"""What the other packages of `quire_testing` share: a disk in memory, one that fails, a transport, and a worker and a clock by steps."""
