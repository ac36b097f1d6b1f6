"""How a ledger or a stream is taken from its writer: fence, find the end, write back, close or go on."""
