"""TLS between nodes: both sides show a certificate of the cluster's own authority.

Invariant: no other authority is trusted, whatever the machine trusts. Who is who is in `adapters/peers/identity.py`.
"""

import ssl
from typing import NamedTuple

from braidlog.model.errors import BrokerError, Reason


class PeerTls(NamedTuple):
    """For who is dialled, and for who dials."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def peer_tls(ca: str, cert: str, key: str) -> PeerTls:
    """`BrokerError` if the files cannot be used."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    try:
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_verify_locations(ca)
            context.load_cert_chain(cert, key)
    except OSError as error:  # ssl's own errors are of this kind too
        text = f"TLS between nodes with {ca}, {cert}, {key}: {error.strerror or error}"
        raise BrokerError(Reason.INVALID_SETTING, text) from error
    return PeerTls(server, client)
