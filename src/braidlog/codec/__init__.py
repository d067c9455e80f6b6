"""Bytes: varints, checksums, compression, and the record batch every door's records are stored in.

Knows: formats. Refuses to know: files, sockets, time, and who is asking. Pure functions on buffers.
May import: the standard library and C libraries made for bytes.
"""
