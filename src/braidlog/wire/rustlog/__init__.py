"""The rustlog dialect: length-prefixed frames, JSON or binary payloads, told apart frame by frame.

Knows: seed 004 and what its published clients send. Refuses to know: sockets, clocks, the log, and the other dialects.
"""
