"""The bookies as a client sees them: who is there, a connection to each, and what is asked of one."""
