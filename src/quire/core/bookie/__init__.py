"""What a bookie knows and answers: its ledgers, its identity, its doubts, what it may drop."""
