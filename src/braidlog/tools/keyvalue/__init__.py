"""Offline tools for a key-value store: verify, salvage and repair."""
