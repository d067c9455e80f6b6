"""Replication decisions as pure functions of state, message and time: in-sync sets, high watermarks, epochs,
elections.

Performs no I/O: time and random numbers are arguments. May import: model, codec.
`replica.py` is the entry point: a state and a message give the next state and a `Ready` (ADR 19).
"""
