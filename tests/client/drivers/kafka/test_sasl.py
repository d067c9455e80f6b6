"""SASL by itself: SCRAM against the vectors of its RFC, and servers that do not know the password."""

import base64

import pytest

from braidlog.client.drivers.kafka.sasl import SaslError, exchange

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
ASKED = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROVED = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNED = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_scram_as_the_rfc_has_it() -> None:
    steps = exchange("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert next(steps) == FIRST
    assert steps.send(ASKED) == PROVED
    with pytest.raises(StopIteration):
        steps.send(SIGNED)


@pytest.mark.parametrize(
    ("asked", "signed", "fault"),
    [
        (b"e=other-error", b"", "invalid first SCRAM message"),
        (ASKED.replace(b"r=rOpr", b"r=sOpr"), b"", "nonce"),
        (ASKED.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), b"", "nonce"),
        (ASKED.replace(b"i=4096", b"i=1"), b"", "1 iterations"),
        (ASKED.replace(b"i=4096", b"i=999999999"), b"", "iterations"),
        (ASKED, b"e=invalid-proof", "does not know"),
        (ASKED, SIGNED.replace(b"6rri", b"6rrj"), "does not know"),
        (ASKED, b"v=" + base64.b64encode(b"x" * 32), "does not know"),
        (ASKED, b"v=!", "base64"),
    ],
)
def test_a_server_that_does_not_know_the_password(asked: bytes, signed: bytes, fault: str) -> None:
    steps = exchange("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(steps)
    with pytest.raises(SaslError, match=fault):
        [steps.send(said) for said in (asked, signed)]


def test_names_are_escaped_and_plain_is_three_parts() -> None:
    assert next(exchange("SCRAM-SHA-512", "a=b,c", "p", "nonce")) == b"n,,n=a=3Db=2Cc,r=nonce"
    steps = exchange("PLAIN", "ada", "s\u00e9same", "")
    assert next(steps) == b"\0ada\0s\xc3\xa9same"
    with pytest.raises(StopIteration):
        steps.send(b"")
