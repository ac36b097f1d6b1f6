"""Whose bookie this process is: its boots, its cookie, and the watch over both."""
