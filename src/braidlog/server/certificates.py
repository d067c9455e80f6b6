"""Loads and reloads the certificates of listeners.

Invariant: files that cannot be used do not replace loaded ones.
"""

import logging
import ssl

from braidlog.model.errors import BrokerError, Reason
from braidlog.server.config import TlsConfig

log = logging.getLogger("braidlog.server")


def tls_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return a TLS context, 1.2 or newer; with a client CA, clients must present a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key or None)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # includes ssl's errors
        files = ", ".join(name for name in (tls.cert, tls.key, tls.client_ca) if name)
        raise BrokerError(Reason.INVALID_SETTING, f"TLS with {files}: {error.strerror or error}") from error
    return context


def reload_certificate(dialect: str, context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Reload a listener's certificate and key for future connections; the old ones stay if the files are invalid."""
    try:
        tls_context(tls)  # check first: half of a pair must not replace a complete one
        context.load_cert_chain(tls.cert, tls.key or None)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)  # in addition to the old one, until the node restarts
        log.info("listener %s has read its certificate again", dialect)
    except (BrokerError, OSError) as error:
        log.error("listener %s keeps the certificate it has: %s", dialect, error)  # noqa: TRY400
