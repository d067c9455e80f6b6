"""Users as a server reports them.

Does not handle: protocols, passwords.
"""

import msgspec

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 1_000_000
"""With fewer iterations an eavesdropper could guess the password; with more a server could keep clients busy."""


class UserCredential(msgspec.Struct, frozen=True, order=True):
    """One credential of a user: a hash of its password, and the number of iterations that made it."""

    user: str
    mechanism: str
    iterations: int
