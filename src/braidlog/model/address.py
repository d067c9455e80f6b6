"""Host and port of a listener."""

from ipaddress import ip_address

Address = tuple[str, int]


def show_address(address: Address) -> str:
    """Format the address, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_address(text: str) -> Address | None:
    """Parse `host:port` or `[host]:port`; None for other text: a server may not know its leader."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_ip_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
