"""Certificates of listeners: read at the start, and again when they are asked for.

Invariant: what cannot be used replaces nothing.
"""

import logging
import ssl

from braidlog.model.errors import BrokerError, Reason
from braidlog.server.config import TlsConfig

log = logging.getLogger("braidlog.server")


def tls_context(tls: TlsConfig) -> ssl.SSLContext:
    """TLS 1.2 or newer; with a client CA, both sides show who they are."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key or None)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl's own errors are of this kind too
        files = ", ".join(name for name in (tls.cert, tls.key, tls.client_ca) if name)
        raise BrokerError(Reason.INVALID_SETTING, f"TLS with {files}: {error.strerror or error}") from error
    return context


def reload_certificate(dialect: str, context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Read certificate and key of a listener again, for the connections to come; the old ones stay if they cannot be used."""
    try:
        tls_context(tls)  # first a fresh one: half of a pair must not replace the whole one that is in use
        context.load_cert_chain(tls.cert, tls.key or None)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)  # besides the one before, until the next start
        log.info("listener %s has read its certificate again", dialect)
    except (BrokerError, OSError) as error:
        log.error("listener %s keeps the certificate it has: %s", dialect, error)  # noqa: TRY400
