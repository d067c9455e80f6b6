"""Translates options of Spark's Kafka connector, so that a job moves by changing one word: `format("braidlog")`.

A setting has the effect that it has there, or is logged as having no effect here, or is refused. Does not handle:
applying options.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from braidlog.spark.options import OptionError, servers

PREFIX: Final = "kafka."
_SERVERS: Final = "kafka.bootstrap.servers"
_PROTOCOL: Final = "kafka.security.protocol"
_MECHANISM: Final = "kafka.sasl.mechanism"
_JAAS: Final = "kafka.sasl.jaas.config"
_PROTOCOLS: Final = {
    # TLS, credentials
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_FILES: Final = {"kafka.ssl.truststore.location": "cafile", "kafka.ssl.keystore.location": "certfile"}
_PEM: Final = ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type")
_IDENTIFICATION: Final = "kafka.ssl.endpoint.identification.algorithm"

SECURITY: Final = frozenset({_PROTOCOL, _MECHANISM, _JAAS, _IDENTIFICATION, *_FILES, *_PEM})
"""Options that become part of the URL."""
RENAMED: Final = {"kafka.compression.type": "compression"}
_TUNING: Final = """
batch.size buffer.memory check.crcs client.dns.lookup client.id connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
enable.idempotence fetch.max.bytes fetch.max.wait.ms fetch.min.bytes heartbeat.interval.ms linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size
metadata.max.age.ms metadata.max.idle.ms receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
retries retry.backoff.max.ms retry.backoff.ms send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms
"""
_OF_CONNECTOR: Final = """
groupidprefix kafkaconsumer.polltimeoutms fetchoffset.numretries fetchoffset.retryintervalms partition.metadata.cache.ttl.ms
"""
TUNING: Final = frozenset([*(PREFIX + name for name in _TUNING.split()), *_OF_CONNECTOR.split()])
"""Options that tune the Java client; without it they do not change what is read and written."""

_ACKS: Final = (("kafka.acks", "all"), ("kafka.acks", "-1"))
_OPENSSL: Final = "`openssl pkcs12 -nodes` converts a Java store"
_LOGIN: Final = re.compile(r'\b(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\')')


def understood(options: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the options with `servers` as a URL that includes all security settings; and the names of options
    without effect."""
    given = {name.lower(): value for name, value in options.items()}
    # Rows are acknowledged by all replicas: accept a request for that, and refuse a request for less.
    idle = [name for name in options if name.lower() in TUNING or (name.lower(), options[name]) in _ACKS]
    translated = {
        RENAMED.get(name.lower(), name): value
        for name, value in options.items()
        if name.lower() not in SECURITY and name not in idle
    }
    if any(name in given for name in SECURITY):
        name = next((name for name in translated if name.lower() in ("servers", _SERVERS)), None)
        if name is None or "://" in translated[name]:
            raise OptionError(_PROTOCOL, None, f"it needs {_SERVERS} = host:port; a URL already contains it")
        translated[name] = _url(translated[name], given)
    return translated, idle


def judged(name: str, value: str) -> tuple[bool, str] | None:
    """Judge an option by its value: return whether it is accepted, and the explanation."""
    low = name.lower()
    match low:
        case "kafka.acks":
            if (low, value) in _ACKS:
                return True, "has no effect here: rows are acknowledged by all replicas"
            return False, "rows are acknowledged by all replicas: set it to all"
        case _ if low == _PROTOCOL and value.upper() not in _PROTOCOLS:
            return False, f"it must be one of {', '.join(_PROTOCOLS)}"
        case _ if low in _PEM and value.upper() != "PEM":
            return False, f"files must be PEM; {_OPENSSL}"
        case _ if low == _IDENTIFICATION and value.lower() != "https":
            return False, "the server's name is always verified: set it to https"
    return None


def _url(nodes: str, given: Mapping[str, str]) -> str:
    protocol = given.get(_PROTOCOL, "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise OptionError(_PROTOCOL, protocol, f"it must be one of {', '.join(_PROTOCOLS)}")
    tls, with_login = _PROTOCOLS[protocol]
    _check_tls(given, tls=tls)
    if with_login != (_JAAS in given):
        raise OptionError(
            _JAAS, None, "it must be set if, and only if, kafka.security.protocol = SASL_PLAINTEXT or SASL_SSL"
        )
    who = _login(given[_JAAS]) if with_login else ""
    query = [f"sasl={quote(given[_MECHANISM])}"] if with_login and _MECHANISM in given else []
    query += [f"{word}={quote(given[name])}" for name, word in _FILES.items() if name in given]
    url = f"kafka{'+tls' if tls else ''}://{who}{nodes.strip()}" + ("?" + "&".join(query) if query else "")
    try:
        return str(servers.parse(url))
    except ValueError as error:
        raise OptionError(_SERVERS, nodes, f"it must be {servers.form} ({error})") from None


def _check_tls(given: Mapping[str, str], *, tls: bool) -> None:
    for name in (*_FILES, *_PEM, _IDENTIFICATION):
        if name in given and not tls:
            raise OptionError(name, None, "it requires kafka.security.protocol = SSL or SASL_SSL")
    for name in _FILES:
        kind = name.replace("location", "type")
        if name in given and given.get(kind, "").upper() != "PEM":
            said = f"files must be PEM: set {kind} = PEM; {_OPENSSL}"
            raise OptionError(name, given[name], said)
    if given.get(_IDENTIFICATION, "https").lower() != "https":
        raise OptionError(
            _IDENTIFICATION, given[_IDENTIFICATION], "the server's name is always verified: set it to https"
        )


def _login(jaas: str) -> str:
    said = {name: re.sub(r"\\(.)", r"\1", quoted or single) for name, quoted, single in _LOGIN.findall(jaas)}
    if set(said) != {"username", "password"}:
        raise OptionError(
            _JAAS, None, 'it must be … required username="…" password="…"; other login modules are Java\'s'
        )
    return f"{quote(said['username'], safe='')}:{quote(said['password'], safe='')}@"
