"""SASL, the client's side: PLAIN, and SCRAM (RFC 5802, RFC 7677), by which a password is proved and not said.

Knows: the tokens. Refuses to know: messages, sockets, randomness (the nonce is an argument).
Invariant: an exchange of SCRAM that does not end with the server's own proof has failed: who does not know the password is not
the server that was meant.

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
"""Yields each token to send and is sent each answer; ends when the server is who it says."""


class SaslError(Exception):
    """The server's answer is not what a server that knows the password would say."""


def exchange(mechanism: str, user: str, password: str, nonce: str) -> Exchange:
    if mechanism == PLAIN:
        return _plain(user, password)
    return _scram(HASHES[mechanism], user, password, nonce)


def _plain(user: str, password: str) -> Exchange:
    yield b"\0".join((b"", user.encode(), password.encode()))


def _scram(algorithm: str, user: str, password: str, nonce: str) -> Exchange:
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    first = (yield f"n,,{bare}".encode()).decode("utf-8", "replace")
    found = _FIRST.fullmatch(first)
    if found is None:
        raise SaslError("this is no first message of SCRAM")
    joined, salt, iterations = found[1], _decoded(found[2]), int(found[3])
    if not joined.startswith(nonce) or joined == nonce:
        raise SaslError("the nonce is not ours with the server's behind it")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise SaslError(f"{iterations} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken")
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
        raise SaslError("the server does not know the password")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SaslError("this is not base64") from error
