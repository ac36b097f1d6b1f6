"""How a directory becomes a running storage: its files are read, what a crash left is mended."""
