"""What a bookie knows and answers: its ledgers, its identity, its limbo, what it may drop."""
