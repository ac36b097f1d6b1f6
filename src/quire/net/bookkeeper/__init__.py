"""BookKeeper's protocols, V2 and V3, as a client speaks them."""
