"""The explorer: the machines of `core` in a small world, every interleaving, every fault that the budget allows.

It imports `core` only. Nothing of the protocol is modelled anew: the writer, the recoverer, the bookie's ledger and the
log's leader that are explored are the classes that production runs. What is modelled is the world between them.
"""
