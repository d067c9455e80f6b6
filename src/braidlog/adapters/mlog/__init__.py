"""mlog meets the services.

Knows: which service answers which request, and what each reason is called in mlog. Refuses to know: bytes, sockets.
"""
