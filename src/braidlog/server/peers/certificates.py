"""TLS between nodes: both sides show a certificate of the cluster's own authority.

Invariants: no other authority is trusted, whatever the machine trusts; files that cannot be used replace nothing. Who
is who is in `adapters/peers/identity.py`.
"""

import logging
import ssl
from typing import Final, NamedTuple

from braidlog.model.errors import BrokerError, Reason

log = logging.getLogger("braidlog.peers")

KEYS: Final = "mayfly-keys"
"""What a connection says in its handshake (ALPN) that is not gossip, on the port that both have."""


class PeerTls(NamedTuple):
    """For who is dialled, and for who dials. Used by one thread: files are read again under nobody's handshake."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    keys: ssl.SSLContext
    """As `client`, of connections that are about keys."""
    files: tuple[str, str, str]
    """Authority, certificate, key."""

    def read_again(self) -> None:
        """For the connections to come. An authority that was replaced is trusted until the node's next start."""
        try:
            peer_tls(*self.files)  # first fresh ones: half of a pair must not replace the whole one that is in use
            for context in (self.server, self.client, self.keys):
                _load(context, *self.files)
        except (BrokerError, OSError) as error:
            log.error("nodes go on with the certificate they have: %s", error)  # noqa: TRY400
        else:
            log.info("the certificate for other nodes was read again: %s", self.files[1])


def peer_tls(ca: str, cert: str, key: str) -> PeerTls:
    """`BrokerError` if the files cannot be used."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client, keys = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    for context in (server, keys):
        context.set_alpn_protocols([KEYS])
    try:
        for context in (server, client, keys):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            _load(context, ca, cert, key)
    except OSError as error:  # ssl's own errors are of this kind too
        text = f"TLS between nodes with {ca}, {cert}, {key}: {error.strerror or error}"
        raise BrokerError(Reason.INVALID_SETTING, text) from error
    return PeerTls(server, client, keys, (ca, cert, key))


def _load(context: ssl.SSLContext, ca: str, cert: str, key: str) -> None:
    context.load_verify_locations(ca)
    context.load_cert_chain(cert, key)
