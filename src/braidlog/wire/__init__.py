"""Wire protocols without I/O, one dialect per folder: bytes become events, responses become bytes.

Does not handle: sockets, clocks, logs, randomness. May import model and codec. A dialect never imports another one;
they share `contract.py` and codec.
"""
