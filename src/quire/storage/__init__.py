"""A bookie's disk: segments that are journal and store in one. It knows runs and ledgers, nothing of protocols."""
