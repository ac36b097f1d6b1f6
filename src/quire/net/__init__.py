"""Sockets: frames in and out, one connection at a time. Knows no ledger and no protocol decision."""
