"""`quire cluster` and `quire bookie`: commands about a cluster and its bookies."""
