"""Adapters between dialects and services: translate the request, call the service, translate the answer.

A folder per dialect: `handlers.py` (ROUTES: request type → a few lines), `errors.py` (one total table, no default
row). Does not handle: sockets, files. May import wire, broker and below. An adapter never imports another one.
"""
