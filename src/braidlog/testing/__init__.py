"""The shipped test kit: a clock that stands still, a disk that fails on demand, a node in a process of its own.

Knows: how to break things on purpose. Refuses to know: pytest, except in the plugin.
May import: storage, wire and model; a node is started through its command line.
"""
