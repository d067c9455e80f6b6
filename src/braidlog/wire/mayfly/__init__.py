"""The mayfly dialect: a key-value store behind 0xCAFE, a fixed header and length-prefixed fields.

Knows: the client protocol of the Mayfly document, and the bodies that it leaves open. Refuses to know: sockets, clocks, the
engine, and the other dialects. The nodes' protocol (0xBEE5) is not here yet.
"""
