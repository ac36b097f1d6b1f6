"""Counterexamples played again by the programs that ship, and recorded runs checked against the machines."""
