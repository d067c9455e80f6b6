"""What a console shows at its node's private doors: for whom it asks.

Knows: names, and the secret that a node has given to its console. Refuses to know: who may do what.
Invariant: who does not have the secret cannot make a token, of anybody.

    base64(name).hex(HMAC-SHA256(secret, name))
"""

import base64
import binascii
import hmac
from typing import Final

CONSOLE: Final = "__console"
"""Who a node's console is on its own doors, and at other nodes: nobody else is called so."""


def door_token(secret: str, principal: str) -> str:
    name = principal.encode()
    return f"{base64.urlsafe_b64encode(name).decode()}.{hmac.digest(secret.encode(), name, 'sha256').hex()}"


def principal_of(secret: str, token: bytes) -> str | None:
    """Whose it is; None: it was not made with this secret."""
    try:
        principal = base64.urlsafe_b64decode(token.partition(b".")[0]).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return principal if hmac.compare_digest(door_token(secret, principal).encode(), token) else None
