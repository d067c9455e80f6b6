"""What a server tells of its users.

Knows: the shape of it. Refuses to know: which protocol it came by, passwords.
"""

import msgspec

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
"""Fewer would give the password away to who listens; more is a server that keeps clients busy."""


class UserCredential(msgspec.Struct, frozen=True, order=True):
    """One way in which a user can prove who it is: a hash of its password, made by so many iterations."""

    user: str
    mechanism: str
    iterations: int
