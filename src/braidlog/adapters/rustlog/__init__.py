"""RustLog meets the services.

Knows: which service answers which request, and what each reason is called in RustLog. Refuses to know: bytes, sockets.
"""
