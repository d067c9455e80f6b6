"""SCRAM (RFC 5802, RFC 7677), the server's side: a client proves that it knows a password without sending it.

Does not handle: sockets, stored credentials, randomness (the nonce is an argument).
Invariant: an exchange runs once, in order. Its first answer does not reveal whether the user exists.

    client  n,,n=user,r=cnonce                          server  r=cnonce+snonce,s=salt,i=iterations
    client  c=biws,r=cnonce+snonce,p=proof              server  v=signature
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable

from braidlog.cluster.metadata.events import Credential
from braidlog.security.users import Hash

_FIRST = re.compile(r"([ny],(?:a=([^,]*))?,)(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)")
_FINAL = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?),p=([A-Za-z0-9+/=]+)")
MESSAGE_BYTES_MAX = 4096


class ScramError(Exception):
    """The exchange failed, for this reason; the client gets no further detail."""


class DoubledNonceError(ScramError):
    """The client repeats its nonce before ours. Reported for every user and password alike, so it reveals neither."""

    def __init__(self) -> None:
        super().__init__(
            "SCRAM: the client's nonce is doubled, as librdkafka before 2.6.1 sends it: upgrade the client, or use PLAIN over TLS"
        )


class Scram:
    """One exchange: `first`, then `final`."""

    def __init__(
        self, kind: Hash, find: Callable[[str], Credential | None], nonce: str, decoy: Callable[[str], Credential]
    ) -> None:
        self._kind = kind
        self._find = find
        self._theirs = ""
        self._nonce = nonce
        self._decoy = decoy
        """The challenge of an unknown user: constant per name, so that repeated attempts reveal nothing."""
        self._header = ""
        self._said = ""
        self._credential: Credential | None = None
        self._is_known = False
        self.name = ""

    def first(self, message: bytes) -> bytes:
        """Read the client's first message; return the answer."""
        found = _FIRST.fullmatch(_text(message))
        if found is None or self._said:
            raise ScramError("expected a first message without channel binding and extensions")
        self._header, authorized, bare, name, theirs = found.groups()
        self.name = _unescape(name)
        if authorized and _unescape(authorized) != self.name:
            raise ScramError("an authorization identity is not supported")
        known, decoy = self._find(self.name), self._decoy(self.name)  # both: the time must not reveal which was used
        self._is_known, credential = known is not None, known or decoy
        self._credential = credential
        self._theirs, self._nonce = theirs, theirs + self._nonce
        answer = f"r={self._nonce},s={base64.b64encode(credential.salt).decode()},i={credential.iterations}"
        self._said = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Verify the client's proof; return ours. Raises `ScramError` if it is invalid."""
        found = _FINAL.fullmatch(_text(message))
        if found is None or not self._said:
            raise ScramError("expected a final message")
        without_proof, header, nonce, proof = found.groups()
        said = f"{self._said},{without_proof}".encode()
        self._said = ""
        if nonce == self._theirs + self._nonce:
            raise DoubledNonceError
        if nonce != self._nonce or _decode(header) != self._header.encode():
            raise ScramError("the final message belongs to another exchange")
        credential = self._credential
        if credential is None or not self._proves(_decode(proof), credential, said) or not self._is_known:
            raise ScramError("the user or the password is wrong")
        signature = hmac.digest(credential.server_key, said, self._kind.algorithm)
        return b"v=" + base64.b64encode(signature)

    def _proves(self, proof: bytes, credential: Credential, said: bytes) -> bool:
        mask = hmac.digest(credential.stored_key, said, self._kind.algorithm)
        if len(proof) != len(mask):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, mask, strict=True))
        found = hashlib.new(self._kind.algorithm, client_key).digest()
        return hmac.compare_digest(found, credential.stored_key)


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message may have at most {MESSAGE_BYTES_MAX} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise ScramError("a message must be UTF-8") from error


def _unescape(name: str) -> str:
    if re.search(r"=(?!2C|3D)", name):
        raise ScramError("in a name, = must be followed by 2C or 3D")
    return name.replace("=2C", ",").replace("=3D", "=")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ScramError("invalid base64") from error
