"""A dialect meets the services: translate, call, translate back.

Knows: for each dialect, which service answers which request, and what each `Reason` is called there. Refuses to know: sockets,
files, other dialects. May import: broker and below, wire.

A folder per dialect: `handlers.py` (ROUTES: request type → a few lines), `errors.py` (one total table, no default row).
"""
