"""The storage server: what it is told to store it stores, what it is asked for it answers. It imports no client."""
