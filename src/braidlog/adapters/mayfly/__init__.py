"""Mayfly meets the key-value service.

Knows: which operation each command is, and what each reason is called in Mayfly. Refuses to know: bytes, sockets, how keys are
kept.
"""
