"""Words every layer shares: names, records, errors, limits, the clock.

Knows: what things are called and how large they may be. Refuses to know: bytes on any wire, files, time itself.
May import: codec.
"""
