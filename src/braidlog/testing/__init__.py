"""The shipped test kit: a clock that stands still, a disk that fails on demand.

Knows: how to break things on purpose. Refuses to know: pytest, except in the plugin.
May import: storage, model, codec.
"""
