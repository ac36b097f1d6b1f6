"""A bookie's clients: their connections, the protocols that these speak, and what they may take."""
