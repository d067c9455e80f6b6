"""Tokens with which a console acts for a user at its node's private listeners.

Does not handle: permissions.
Invariant: a token cannot be made without the secret that the node gave to its console.

    base64(name).hex(HMAC-SHA256(secret, name))
"""

import base64
import binascii
import hmac
from typing import Final

CONSOLE: Final = "__console"
"""The principal of a node's console at its own listeners and at other nodes. No user can have this name."""


def door_token(secret: str, principal: str) -> str:
    name = principal.encode()
    return f"{base64.urlsafe_b64encode(name).decode()}.{hmac.digest(secret.encode(), name, 'sha256').hex()}"


def principal_of(secret: str, token: bytes) -> str | None:
    """Return the token's principal, or None if it was not made with this secret."""
    try:
        principal = base64.urlsafe_b64decode(token.partition(b".")[0]).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return principal if hmac.compare_digest(door_token(secret, principal).encode(), token) else None
