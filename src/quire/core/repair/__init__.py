"""What is missing or too much of ledgers, and who puts it right, in which order."""
