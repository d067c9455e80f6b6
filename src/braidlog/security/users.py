"""Users with passwords, stored as verifiers from which no password can be computed (RFC 5802).

A verifier has a salt, an iteration count and two keys, per user and hash.
Does not handle: the transport of proofs, permissions (`authorization.py`).
Invariants: an acknowledged user survives a crash. An unknown user and a wrong password take the same time. Users
of the configuration never change at run time. Passwords are not kept.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from enum import StrEnum
from itertools import chain, islice

from braidlog.cluster.metadata.events import Credential, DropUser, Event, SetUser
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.runtime.runtime import Runtime
from braidlog.security.authorization import RESERVED

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
_SALT_BYTES = (1, 1024)
DECOY_USERS_MAX = 64
_NOBODY = Credential(bytes(16), ITERATIONS_MIN, b"", b"")
_VERIFIER = re.compile(r"(SCRAM-SHA-(?:256|512))\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)")


class Hash(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def algorithm(self) -> str:
        return self.name.replace("_", "").lower()

    @property
    def size(self) -> int:
        return hashlib.new(self.algorithm).digest_size


def credential_of(kind: Hash, salt: bytes, iterations: int, salted_password: bytes) -> Credential:
    client_key = hmac.digest(salted_password, b"Client Key", kind.algorithm)
    stored_key = hashlib.new(kind.algorithm, client_key).digest()
    return Credential(salt, iterations, stored_key, hmac.digest(salted_password, b"Server Key", kind.algorithm))


def salt_password(kind: Hash, password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(kind.algorithm, password, salt, iterations)


def show_verifier(kind: Hash, credential: Credential) -> str:
    """Return a verifier as in the configuration: `SCRAM-SHA-256$4096:salt$stored key:server key`, each part in
    base64."""
    salt, stored, server = (
        base64.b64encode(part).decode() for part in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"{kind}${credential.iterations}:{salt}${stored}:{server}"


def parse_verifier(name: str, text: str) -> tuple[Hash, Credential]:
    found = _VERIFIER.fullmatch(text)
    if found is None:
        raise BrokerError(
            Reason.INVALID_SETTING,
            f"the password of {name!r} is given as SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>",
        )
    kind, iterations = Hash(found[1]), int(found[2])
    try:
        salt, stored, server = (base64.b64decode(part, validate=True) for part in found.group(3, 4, 5))
    except binascii.Error as error:
        raise BrokerError(Reason.INVALID_SETTING, f"the verifier of {name!r} is not base64: {error}") from error
    _check(name, kind, salt, iterations, stored)
    return kind, Credential(salt, iterations, stored, server)


def _check(name: str, kind: Hash, salt: bytes, iterations: int, key: bytes) -> None:
    low, high = _SALT_BYTES
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        fault = f"a user's name has 1 to {NAME_CHARS_MAX} printable characters"
    elif name in RESERVED:
        fault = f"{name!r} is no principal that could have a password"
    elif not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        fault = f"a password is hashed {ITERATIONS_MIN} to {ITERATIONS_MAX} times, not {iterations}"
    elif not low <= len(salt) <= high or len(key) != kind.size:
        fault = f"a salt has {low} to {high} bytes and a key of {kind} {kind.size}, not {len(salt)} and {len(key)}"
    else:
        return
    raise BrokerError(Reason.INVALID_USER, fault)


class Users:
    """Verifies and changes passwords."""

    def __init__(self, metadata: Metadata, runtime: Runtime, configured: Mapping[str, str] | None = None) -> None:
        self._metadata = metadata
        self._runtime = runtime
        self._configured: dict[str, dict[Hash, Credential]] = {}
        for name, text in (configured or {}).items():
            kind, credential = parse_verifier(name, text)
            self._configured[name] = {kind: credential}

    def names(self) -> list[str]:
        return sorted({*self._configured, *self._metadata.image.users})

    def credentials(self, name: str) -> dict[Hash, Credential]:
        """Return the credentials of a user by hash; empty if the user does not exist."""
        if name in self._configured:
            return self._configured[name]
        return _by_hash(self._metadata.image, name)

    async def put(self, name: str, kind: Hash, salt: bytes, iterations: int, salted_password: bytes) -> None:
        """Create a user, or set its password."""
        _check(name, kind, salt, iterations, salted_password)
        self._refuse_configured(name)
        credential = credential_of(kind, salt, iterations, salted_password)
        await self._metadata.change(lambda image: [_set_user(name, {**_by_hash(image, name), kind: credential})])

    async def drop(self, name: str, kind: Hash) -> None:
        self._refuse_configured(name)

        def decide(image: Image) -> list[Event]:
            known = _by_hash(image, name)
            if kind not in known:
                raise BrokerError(Reason.USER_NOT_FOUND, f"user {name[:60]!r} has no {kind}")
            left = {other: credential for other, credential in known.items() if other is not kind}
            return [_set_user(name, left) if left else DropUser(user=name)]

        await self._metadata.change(decide)

    def _refuse_configured(self, name: str) -> None:
        if name in self._configured:
            raise BrokerError(Reason.INVALID_USER, f"user {name!r} stands in the configuration and is changed there")

    def decoy(self, name: str, kind: Hash) -> Credential:
        """Return the challenge for an unknown user: salt and iterations like those of an existing user, equal on
        every call.

        It is derived from the key of a user selected by the name: clients cannot compute it, and it survives a
        restart.
        """
        some = islice(chain(self._configured, self._metadata.image.users), DECOY_USERS_MAX)
        known = [found[kind] for found in map(self.credentials, some) if kind in found]
        model = min(known, key=lambda each: hmac.digest(each.server_key, name.encode(), "sha256"), default=_NOBODY)
        salt = hashlib.shake_256(model.server_key + name.encode()).digest(len(model.salt))
        return Credential(salt, model.iterations, bytes(kind.size), bytes(kind.size))

    async def check_password(self, name: str, password: bytes) -> bool:
        """Return whether a password is the user's. It runs on a thread and takes as long for an unknown user."""
        known = self.credentials(name)
        kind = next(iter(known), Hash.SHA_256)
        decoy = self.decoy(name, kind)
        expected = known.get(kind, decoy)

        def work() -> bool:
            salted = salt_password(kind, password, expected.salt, expected.iterations)
            found = credential_of(kind, expected.salt, expected.iterations, salted)
            return hmac.compare_digest(found.stored_key, expected.stored_key)

        return await self._runtime.blocking(work) and bool(known)


def _by_hash(image: Image, name: str) -> dict[Hash, Credential]:
    return {Hash(kind): credential for kind, credential in image.users.get(name, {}).items()}


def _set_user(name: str, credentials: Mapping[Hash, Credential]) -> SetUser:
    return SetUser(user=name, credentials={str(kind): credential for kind, credential in credentials.items()})
