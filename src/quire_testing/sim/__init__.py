"""The programs that ship, whole, in a simulated world: one seed is one run, bit for bit."""
