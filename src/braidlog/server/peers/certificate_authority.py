"""Creates the certificates of a cluster: an authority, and one certificate per node.

Only commands that create certificates import this module, so a running node does not need the library.
Invariants: a key file is readable by its owner only, and never overwrites another file. The name in a certificate is
the node's number.
"""

import datetime as dt
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:  # pragma: no cover - a development machine has it
    raise ImportError("making certificates needs the library cryptography: pip install 'braidlog[cluster]'") from error

from braidlog.adapters.peers.follower_sessions import name_of
from braidlog.model.clock import Clock

AUTHORITY: Final = "braidlog-ca"
DAYS: Final = 3650
"""Expired certificates would stop replication on all nodes together, so they outlast the machines."""
_BACKDATED: Final = dt.timedelta(days=1)
"""A node whose clock is behind must accept a new certificate."""


class Pair(NamedTuple):
    """PEM files."""

    certificate: Path
    key: Path


def authority_in(folder: Path) -> Pair:
    """Paths of the authority in this folder, whether or not it exists."""
    return _pair(folder, AUTHORITY)


def make_authority(folder: Path, clock: Clock) -> Pair:
    """Create the authority of a cluster. Its key signs node certificates, and no node needs it. Raises FileExistsError
    if one exists.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(AUTHORITY)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = (
        _begun(name, name, key.public_key(), clock)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _write(folder, AUTHORITY, made, key)


def make_node_certificate(authority: Pair, folder: Path, node: int, clock: Clock, hosts: Iterable[str] = ()) -> Pair:
    """Create a node's certificate. `hosts` are for other tools: nodes check the number alone. Raises FileExistsError
    if one exists.
    """
    issuer = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    signing = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey), "not a braidlog authority"
    key = ec.generate_private_key(ec.SECP256R1())
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    names = [x509.DNSName(name_of(node)), *map(_general_name, hosts)]
    made = (
        _begun(_name(name_of(node)), issuer.subject, key.public_key(), clock)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    return _write(folder, name_of(node), made, key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, clock: Clock
) -> x509.CertificateBuilder:
    now = dt.datetime.fromtimestamp(clock.now_ms() // 1000, dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + dt.timedelta(days=DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(folder: Path, name: str) -> Pair:
    return Pair(folder / f"{name}.pem", folder / f"{name}.key")


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    """Write the key first, and sync both files: a certificate without its key is useless, a key without its
    certificate is harmless.
    """
    pair = _pair(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_new(pair.key, private, 0o600)
    _write_new(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return pair


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
