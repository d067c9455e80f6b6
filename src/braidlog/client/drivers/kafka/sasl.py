"""Client side of SASL: PLAIN, and SCRAM (RFC 5802, RFC 7677), which proves a password without sending it.

Does not handle: messages, sockets, randomness (the nonce is an argument).
A SCRAM exchange fails unless the server proves that it knows the password too.

    client  n,,n=user,r=cnonce                          server  r=cnonce+snonce,s=salt,i=iterations
    client  c=biws,r=cnonce+snonce,p=proof              server  v=signature
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Generator
from typing import Final

from braidlog.client.drivers.users import ITERATIONS_MAX, ITERATIONS_MIN

PLAIN: Final = "PLAIN"
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = (PLAIN, *HASHES)

_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})(?:,.*)?")

Exchange = Generator[bytes, bytes, None]
"""Yields each token to send and receives each answer; ends when the server is authenticated."""


class SaslError(Exception):
    """The server's answer is invalid, or does not prove that the server knows the password."""


def exchange(mechanism: str, user: str, password: str, nonce: str) -> Exchange:
    if mechanism == PLAIN:
        return _plain(user, password)
    return _scram(HASHES[mechanism], user, password, nonce)


def _plain(user: str, password: str) -> Exchange:
    yield b"\0".join((b"", user.encode(), password.encode()))


def _scram(algorithm: str, user: str, password: str, nonce: str) -> Exchange:
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    first = (yield f"n,,{bare}".encode()).decode("utf-8", "replace")
    fields = _FIRST.fullmatch(first)
    if fields is None:
        raise SaslError("invalid first SCRAM message")
    joined, salt, iterations = fields[1], _decoded(fields[2]), int(fields[3])
    if not joined.startswith(nonce) or joined == nonce:
        raise SaslError("SCRAM: invalid server nonce")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise SaslError(f"SCRAM: {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted")
    without_proof = f"c=biws,r={joined}"
    said = f"{bare},{first},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    mask = hmac.digest(hashlib.new(algorithm, client_key).digest(), said, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
    final = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    signature = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), said, algorithm)
    if not final.startswith(b"v=") or not hmac.compare_digest(
        _decoded(final[2:].decode("ascii", "replace").partition(",")[0]), signature
    ):
        raise SaslError("SCRAM: invalid server signature: the server does not know the password")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SaslError("invalid base64") from error
