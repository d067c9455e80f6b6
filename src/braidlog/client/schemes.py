"""Maps URL schemes to drivers: a scheme is a dialect's name, and `drivers/<dialect>` is its driver.

rustlog://127.0.0.1:9096                     rustlog+tls://broker:9096?cafile=ca.pem
rustlog://127.0.0.1:9096?format=binary       cursus://principal:token@n1:9000,n2:9000
kafka://n1:9092,n2:9092?compression=lz4      kafka+tls://user:password@n1?sasl=SCRAM-SHA-256
"""

import ssl
from importlib.util import find_spec
from typing import NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from braidlog.client.drivers.contract import Capabilities, Driver
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import Address, UnsupportedError
from braidlog.model.address import read_address, show_address
from braidlog.wire.dialect import dialects

SCHEMES = dialects()

_DRIVERS = "braidlog.client.drivers"
_TLS = "+tls"
_TLS_FILES = ("cafile", "certfile", "keyfile")


class Target(msgspec.Struct, frozen=True):
    """A parsed URL."""

    scheme: str
    nodes: tuple[Address, ...]
    options: dict[str, str]
    principal: str | None = None
    token: str | None = None
    tls: bool = False

    def __repr__(self) -> str:
        """Show the URL without the token: a repr ends up in logs."""
        who = f"{self.principal}:…@" if self.principal else ""
        return f"{self.scheme}{_TLS if self.tls else ''}://{who}{','.join(map(show_address, self.nodes))}"

    __str__ = __repr__


def parse_url(url: str) -> Target:
    """Parse a URL; ValueError says what is wrong with it."""
    parts = urlsplit(url)
    scheme, tls = parts.scheme.removesuffix(_TLS), parts.scheme.endswith(_TLS)
    if scheme not in SCHEMES:
        raise ValueError(
            f"unknown scheme {url.partition('://')[0][:40]!r}; supported: {', '.join(SCHEMES)}, each also with {_TLS}"
        )
    if parts.path not in ("", "/") or parts.fragment:
        raise ValueError("the URL must end after host and port: name topics in calls, not in the URL")
    who, _, hosts = parts.netloc.rpartition("@")
    principal, _, token = who.partition(":")
    nodes = tuple(_node(host, SCHEMES[scheme].port) for host in hosts.split(","))
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Target(scheme, nodes, options, unquote(principal) or None, unquote(token) or None, tls)


def _node(text: str, port: int) -> Address:
    bare = text.endswith("]") or ":" not in text
    address = read_address(f"{text}:{port}" if bare else text)
    if address is None:
        raise ValueError(f"{text[:60]!r} is not host or host:port")
    return address


def make_driver(target: Target, policy: Policy, tls: ssl.SSLContext | None = None) -> Driver:
    """Return the driver for a target; does not connect."""
    if not _is_spoken(target.scheme):
        _not_spoken(target.scheme)
    tls, options = tls_of(target, tls)
    driver: Driver = driver_class(target.scheme)(target, options, policy, tls)
    return driver


def tls_of(target: Target, tls: ssl.SSLContext | None = None) -> tuple[ssl.SSLContext | None, dict[str, str]]:
    """Return the TLS context for the URL, or the given one; and the URL's options that do not concern TLS."""
    options = dict(target.options)
    files = {name: options.pop(name) for name in _TLS_FILES if name in options}
    if target.tls and tls is None:
        tls = ssl.create_default_context(cafile=files.get("cafile"))
        if "certfile" in files:
            tls.load_cert_chain(files["certfile"], files.get("keyfile"))
    elif files:
        raise ValueError(f"{', '.join(files)}: these options need a {target.scheme}{_TLS}:// URL and no TLS context")
    return tls, options


def _not_spoken(scheme: str) -> NoReturn:
    if not SCHEMES[scheme].has_topics:
        raise UnsupportedError(f"{scheme}:// has keys, not topics: use braidlog.kv.connect")
    spoken = ", ".join(filter(_is_spoken, SCHEMES))
    raise UnsupportedError(f"{scheme}:// is not in this version of the client; it speaks {spoken}")


def _is_spoken(scheme: str) -> bool:
    return find_spec(f"{_DRIVERS}.{scheme}") is not None


def driver_class(scheme: str) -> type:
    driver: type = SCHEMES[scheme].part(f"{_DRIVERS}.{scheme}", "Driver")
    return driver


# -- capabilities --------------------------------------------------------------------------------------------------


def capabilities() -> dict[str, Capabilities]:
    """Return the capabilities of each dialect, by the name of its column."""
    table = {}
    for name in filter(_is_spoken, SCHEMES):
        row = SCHEMES[name]
        columns: dict[str, dict[str, str]] = {name: {}} | row.url_variants
        for column, options in columns.items():
            target = Target(name, (("localhost", row.port),), options)
            table[column] = make_driver(target, Policy()).capabilities
    return table


def dialects_with(field: str) -> list[str]:
    return [name for name, able in capabilities().items() if getattr(able, field)]
