"""The rustlog dialect: length-prefixed frames, JSON or binary payloads, told apart frame by frame.

Knows: the RustLog document and what its published clients send. Refuses to know: sockets, clocks, the log, other dialects.
"""
