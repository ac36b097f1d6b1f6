"""The protocol, pure: it decides and does no I/O.

Nothing here reads a clock, draws a random number, opens a file or a socket, starts a thread or logs.
Time and chance are arguments; what should happen is returned or appended to a list of effects.
"""
