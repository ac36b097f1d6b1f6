"""Compare-and-swap stores: one interface, its drivers, and what Quire keeps in them."""
