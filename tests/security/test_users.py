"""Users with passwords: verifiers by the RFCs' own example, durable, and nothing to guess from."""

import base64
import hashlib
import hmac

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.model.errors import BrokerError, Reason
from braidlog.security.users import (
    ITERATIONS_MIN,
    Hash,
    Users,
    credential_of,
    parse_verifier,
    salt_password,
    show_verifier,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
"""RFC 7677, section 3: user "user", password "pencil", 4096 iterations."""


def put(node: Node, name: str = "user", password: bytes = b"pencil", kind: Hash = Hash.SHA_256) -> None:
    salted = salt_password(kind, password, SALT, 4096)
    node.run(node.services.users.put(name, kind, SALT, 4096, salted))


def test_the_example_of_rfc_7677() -> None:
    credential = credential_of(Hash.SHA_256, SALT, 4096, salt_password(Hash.SHA_256, b"pencil", SALT, 4096))
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    said = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    signature = hmac.digest(credential.server_key, said, "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    mask = hmac.digest(credential.stored_key, said, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, mask, strict=True))
    assert hashlib.sha256(client_key).digest() == credential.stored_key


def test_passwords(node: Node) -> None:
    users = node.services.users
    put(node)
    put(node, kind=Hash.SHA_512)
    assert users.names() == ["user"]
    assert set(users.credentials("user")) == set(Hash)
    again = node.restarted()
    for each in (node, again):
        assert each.run(each.services.users.check_password("user", b"pencil"))
        assert not each.run(each.services.users.check_password("user", b"Pencil"))
        assert not each.run(each.services.users.check_password("nobody", b"pencil"))
    put(node, password=b"eraser")
    node.run(users.drop("user", Hash.SHA_512))
    assert node.run(users.check_password("user", b"eraser"))
    node.run(users.drop("user", Hash.SHA_256))
    assert node.restarted().services.users.names() == []
    with refused_with(Reason.USER_NOT_FOUND):
        node.run(users.drop("user", Hash.SHA_256))


def test_an_empty_key_lets_nobody_in(node: Node) -> None:
    assert not node.run(node.services.users.check_password("nobody", b""))


@pytest.mark.parametrize(
    ("name", "salt", "iterations", "key"),
    [
        ("", SALT, 4096, bytes(32)),
        ("x" * 250, SALT, 4096, bytes(32)),
        ("a\nb", SALT, 4096, bytes(32)),
        ("anonymous", SALT, 4096, bytes(32)),
        ("__console", SALT, 4096, bytes(32)),
        ("*", SALT, 4096, bytes(32)),
        ("user", SALT, 4095, bytes(32)),
        ("user", SALT, 1_000_001, bytes(32)),
        ("user", b"", 4096, bytes(32)),
        ("user", bytes(1025), 4096, bytes(32)),
        ("user", SALT, 4096, bytes(31)),
    ],
)
def test_bounds(node: Node, name: str, salt: bytes, iterations: int, key: bytes) -> None:
    with refused_with(Reason.INVALID_USER):
        node.run(node.services.users.put(name, Hash.SHA_256, salt, iterations, key))
    assert node.services.users.names() == []


def test_users_of_the_configuration(node: Node) -> None:
    kind = Hash.SHA_256
    text = show_verifier(kind, credential_of(kind, SALT, 4096, salt_password(kind, b"pencil", SALT, 4096)))
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    users = Users(node.services.metadata, node.runtime, {"alice": text})
    assert users.names() == ["alice"]
    assert node.run(users.check_password("alice", b"pencil"))
    for change in (users.drop("alice", kind), users.put("alice", kind, SALT, 4096, bytes(32))):
        with refused_with(Reason.INVALID_USER):
            node.run(change)
    for wrong in ("pencil", text[:-8] + "!", text.replace("$4096", "$1"), text.replace("256", "512"), ""):
        with pytest.raises(BrokerError):
            parse_verifier("alice", wrong)


@pytest.fixture
def node() -> Node:
    return Node()


def test_who_is_not_there_is_asked_like_one_who_is() -> None:
    """Iterations and length of the salt are those of users; the salt is the same each time, also after a restart."""
    node = Node()
    configured = {
        name: show_verifier(Hash.SHA_256, credential_of(Hash.SHA_256, salt, count, name.encode()))
        for name, salt, count in (("ann", b"a" * 12, 8192), ("bob", b"b" * 20, 16384))
    }
    forms = {(12, 8192), (20, 16384)}

    def asked(node: Node) -> list[tuple[bytes, int]]:
        users = Users(node.services.metadata, node.runtime, configured)
        decoys = [users.decoy(f"nobody{number}", Hash.SHA_256) for number in range(50)]
        return [(each.salt, each.iterations) for each in decoys]

    found = asked(node)
    assert {(len(salt), iterations) for salt, iterations in found} == forms
    assert len({salt for salt, _ in found}) == 50
    assert asked(node.restarted()) == found
    other = Users(node.services.metadata, node.runtime, {"ann": configured["ann"]})
    assert other.decoy("nobody", Hash.SHA_512).iterations == ITERATIONS_MIN, "nobody has such a password"
