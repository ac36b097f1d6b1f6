"""The explorer: the machines of `core` in a small world, every interleaving, every fault that the budget allows.

A *world* is one small configuration: some bookies, clients and records, and a *budget*, which says how many crashes,
time-outs and other faults may come. In every state that a world can reach, the *invariants* must hold. A *mutant* is a world
in which one fix is taken out; the explorer must find the invariant that breaks without it.

It imports `core` only. Nothing of the protocol is modelled anew: the writer, the recoverer, the bookie's ledger and the
log's leader that are explored are the classes that production runs. What is modelled is the world between them.
"""
