"""A bookie's collector: what it drops, on which proof, and the bytes that come back."""
