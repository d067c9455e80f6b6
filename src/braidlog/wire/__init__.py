"""Dialects without I/O: bytes become events, answers become bytes.

Knows: one wire protocol per folder. Refuses to know: sockets, clocks, logs, randomness, and the other dialects.
May import: model, codec. A dialect never imports a sibling; what they share is `contract.py` and codec.
"""
