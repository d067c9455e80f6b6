"""TLS between nodes: both sides present a certificate of the cluster's own authority.

Invariants: no other authority is trusted, not even one that the machine trusts. Unusable files replace nothing.
`adapters/peers/follower_sessions.py` maps certificates to nodes.
"""

import logging
import ssl
from typing import Final, NamedTuple

from braidlog.model.errors import BrokerError, Reason

log = logging.getLogger("braidlog.peers")

KEYS: Final = "mayfly-keys"
"""Protocol name (ALPN) in the handshake of key connections, which share the port with gossip."""


class PeerTls(NamedTuple):
    """TLS contexts for accepted and dialled connections. Used by one thread, so files are never reloaded during a
    handshake.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    keys: ssl.SSLContext
    """Like `client`, for key connections."""
    files: tuple[str, str, str]
    """Authority, certificate, key."""

    def reload(self) -> None:
        """Reload the files for future connections. A replaced authority stays trusted until the node restarts."""
        try:
            peer_tls(*self.files)  # check the new files first: half of a pair must not replace a complete one
            for context in (self.server, self.client, self.keys):
                _load(context, *self.files)
        except (BrokerError, OSError) as error:
            log.error("peer certificate not reloaded: %s", error)  # noqa: TRY400
        else:
            log.info("peer certificate reloaded: %s", self.files[1])


def peer_tls(ca: str, cert: str, key: str) -> PeerTls:
    """Load the TLS contexts. Raises `BrokerError` if the files are unusable."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client, keys = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    for context in (server, keys):
        context.set_alpn_protocols([KEYS])
    try:
        for context in (server, client, keys):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            _load(context, ca, cert, key)
    except OSError as error:  # includes ssl's errors
        text = f"TLS between nodes with {ca}, {cert}, {key}: {error.strerror or error}"
        raise BrokerError(Reason.INVALID_SETTING, text) from error
    return PeerTls(server, client, keys, (ca, cert, key))


def _load(context: ssl.SSLContext, ca: str, cert: str, key: str) -> None:
    context.load_verify_locations(ca)
    context.load_cert_chain(cert, key)
