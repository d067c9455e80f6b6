"""Captures: write conversations as pcapng, and read TCP streams from pcapng or pcap.

A written conversation is a complete TCP connection (handshake, data, close) with valid sequence numbers, so that
Wireshark reassembles it. A truncated block or packet ends the file.

    block     u32 type │ u32 length │ body, padded to 4 │ u32 length again
    file      section header, one interface (raw IP, times in nanoseconds), then one enhanced packet for each segment
"""

import ipaddress
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from braidlog.wire.observer import Side

SECTION: Final = 0x0A0D0D0A
INTERFACE: Final = 1
ENHANCED: Final = 6
SIMPLE: Final = 3
BYTE_ORDER: Final = 0x1A2B3C4D
RAW_IP: Final = 101
SEGMENT_BYTES_MAX: Final = 60_000
"""Maximum data of a packet, whose length with headers is a u16."""
PACKET_BYTES_MAX: Final = 1 << 24
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of buffered out-of-order segments."""

_FIN, _SYN, _PSH, _ACK = 1, 2, 8, 16
_PCAP_MAGICS: Final = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\xa1\xb2\xc3\xd4": (">", 1000),
                       b"\x4d\x3c\xb2\xa1": ("<", 1), b"\xa1\xb2\x3c\x4d": (">", 1)}  # fmt: skip


class Address(NamedTuple):
    host: str
    port: int


# -- writing ---------------------------------------------------------------------------------------------------


def _block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _packed(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        address = ipaddress.ip_address("127.0.0.1")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed


class _Writing:
    """A conversation that is written: the next sequence number of each side."""

    def __init__(self, client: Address, server: Address) -> None:
        ends = {Side.CLIENT: client, Side.SERVER: server}
        hosts = {side: _packed(end.host) for side, end in ends.items()}
        if len(set(map(len, hosts.values()))) > 1:  # one of them is not a numeric address
            hosts = dict.fromkeys(Side, ipaddress.ip_address("127.0.0.1").packed)
        self.hosts = hosts
        self.ports = {side: end.port for side, end in ends.items()}
        self.next = {Side.CLIENT: 1000, Side.SERVER: 2000}

    def packet(self, side: Side, flags: int, data: bytes = b"") -> bytes:
        other = Side.SERVER if side is Side.CLIENT else Side.CLIENT
        source, target = self.hosts[side], self.hosts[other]
        acknowledged = self.next[other] & 0xFFFFFFFF if flags & _ACK else 0
        tcp = struct.pack(
            ">HHIIBBHHH",
            self.ports[side],
            self.ports[other],
            self.next[side] & 0xFFFFFFFF,
            acknowledged,
            0x50,
            flags,
            65535,
            0,
            0,
        )
        size = len(tcp) + len(data)
        if len(source) == 4:
            pseudo = source + target + struct.pack(">BBH", 0, 6, size)
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + size, 0, 0x4000, 64, 6, 0, source, target)
            ip = ip[:10] + struct.pack(">H", _checksum(ip)) + ip[12:]
        else:
            pseudo = source + target + struct.pack(">II", size, 6)
            ip = struct.pack(">IHBB16s16s", 0x60000000, size, 6, 64, source, target)
        tcp = tcp[:16] + struct.pack(">H", _checksum(pseudo + tcp + data)) + tcp[18:]
        self.next[side] += len(data) + (1 if flags & (_SYN | _FIN) else 0)
        return ip + tcp + data


class CaptureWriter:
    """Writes a capture of several conversations, each identified by its key."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._open: dict[str, _Writing] = {}
        file.write(_block(SECTION, struct.pack("<IHHq", BYTE_ORDER, 1, 0, -1)))
        nanoseconds = struct.pack("<HHBxxx", 9, 1, 9) + struct.pack("<HH", 0, 0)
        file.write(_block(INTERFACE, struct.pack("<HHI", RAW_IP, 0, 0) + nanoseconds))

    def open(self, key: str, client: Address, server: Address, time_ns: int) -> None:
        talk = self._open[key] = _Writing(client, server)
        self._packet(time_ns, talk.packet(Side.CLIENT, _SYN))
        self._packet(time_ns, talk.packet(Side.SERVER, _SYN | _ACK))
        self._packet(time_ns, talk.packet(Side.CLIENT, _ACK))

    def write(self, key: str, side: Side, data: bytes, time_ns: int) -> None:
        talk = self._open[key]
        for at in range(0, len(data), SEGMENT_BYTES_MAX):
            self._packet(time_ns, talk.packet(side, _PSH | _ACK, data[at : at + SEGMENT_BYTES_MAX]))

    def close(self, key: str, time_ns: int) -> None:
        talk = self._open.pop(key, None)
        if talk is not None:
            for side in Side:
                self._packet(time_ns, talk.packet(side, _FIN | _ACK))
            self._packet(time_ns, talk.packet(Side.CLIENT, _ACK))

    def _packet(self, time_ns: int, data: bytes) -> None:
        head = struct.pack("<IIIII", 0, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), len(data))
        self._file.write(_block(ENHANCED, head + data))


# -- reading ---------------------------------------------------------------------------------------------------


class Packet(NamedTuple):
    time_ns: int
    link: int
    data: bytes


class Segment(NamedTuple):
    """Bytes of a TCP conversation, in order. `connection` numbers the conversations of a file from 1."""

    time_ns: int
    connection: str
    source: Address
    target: Address
    side: Side
    data: bytes


class CaptureError(ValueError):
    """The file is not a capture, or is damaged at the byte in the message."""


def is_capture(begin: bytes) -> bool:
    return begin[:4] == b"\x0a\x0d\x0d\x0a" or begin[:4] in _PCAP_MAGICS


def packets_of(data: bytes) -> Iterator[Packet]:
    """Yield every packet of a pcapng or pcap file; ignores a truncated last packet."""
    if data[:4] in _PCAP_MAGICS:
        yield from _pcap(data)
    elif is_capture(data):
        yield from _pcapng(data)
    else:
        raise CaptureError("not a pcapng or pcap file")


def _pcap(data: bytes) -> Iterator[Packet]:
    order, factor = _PCAP_MAGICS[data[:4]]
    if len(data) < 24:
        return
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    head, at = struct.Struct(order + "IIII"), 24
    while at + head.size <= len(data):
        seconds, fraction, size, _ = head.unpack_from(data, at)
        at += head.size
        if size > PACKET_BYTES_MAX:
            raise CaptureError(f"invalid packet of {size} bytes at byte {at - head.size}")
        if at + size > len(data):
            return
        yield Packet(seconds * 1_000_000_000 + fraction * factor, link, data[at : at + size])
        at += size


class _Interface(NamedTuple):
    link: int
    units_per_second: int


def _pcapng(data: bytes) -> Iterator[Packet]:
    order, at = "<", 0
    interfaces: list[_Interface] = []
    while at + 12 <= len(data):
        kind = struct.unpack_from(order + "I", data, at)[0]
        if kind == SECTION:
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        size = struct.unpack_from(order + "I", data, at + 4)[0]
        if size < 12 or size % 4 or size > PACKET_BYTES_MAX:
            raise CaptureError(f"invalid block of {size} bytes at byte {at}")
        if at + size > len(data):
            return
        body = data[at + 8 : at + size - 4]
        at += size
        if kind == INTERFACE and len(body) >= 8:
            interfaces.append(_Interface(struct.unpack_from(order + "H", body)[0], _units(order, body)))
        elif kind == ENHANCED and len(body) >= 20:
            number, high, low, kept, _ = struct.unpack_from(order + "IIIII", body)
            if number >= len(interfaces) or 20 + kept > len(body):
                raise CaptureError(f"packet of unknown interface {number} at byte {at - size}")
            link, units = interfaces[number]
            yield Packet((high << 32 | low) * 1_000_000_000 // units, link, body[20 : 20 + kept])
        elif kind == SIMPLE and interfaces and len(body) >= 4:
            yield Packet(0, interfaces[0].link, body[4 : 4 + struct.unpack_from(order + "I", body)[0]])


def _units(order: str, body: bytes) -> int:
    """Return the timestamp units per second: option 9, a power of ten, or of two if the highest bit is set."""
    at = 8
    while at + 4 <= len(body):
        code, size = struct.unpack_from(order + "HH", body, at)
        if code == 0:
            break
        if code == 9 and size == 1:
            power = body[at + 4]
            return int(2 ** (power & 0x7F)) if power & 0x80 else int(10 ** min(power, 18))
        at += 4 + size + -size % 4
    return 1_000_000


def _ip_of(packet: Packet) -> bytes:
    """Return the IP packet inside; empty for other protocols."""
    data = packet.data
    if packet.link in (RAW_IP, 228, 229, 12, 14):
        return data
    if packet.link == 1:
        at = 12
        while data[at : at + 2] in (b"\x81\x00", b"\x88\xa8"):
            at += 4
        return data[at + 2 :] if data[at : at + 2] in (b"\x08\x00", b"\x86\xdd") else b""
    if packet.link == 113:
        return data[16:]
    if packet.link == 276:
        return data[20:]
    return data[4:] if packet.link in (0, 108) else b""


class _Tcp(NamedTuple):
    source: Address
    target: Address
    sequence: int
    flags: int
    data: bytes


def _tcp_of(ip: bytes) -> _Tcp | None:
    if len(ip) >= 40 and ip[0] >> 4 == 6 and ip[6] == 6:
        end, start, hosts = 40 + int.from_bytes(ip[4:6], "big"), 40, (ip[8:24], ip[24:40])
    elif len(ip) >= 20 and ip[0] >> 4 == 4 and ip[9] == 6:
        end, start, hosts = int.from_bytes(ip[2:4], "big"), (ip[0] & 15) * 4, (ip[12:16], ip[16:20])
        end = end or len(ip)  # computed by the network card
    else:
        return None
    if len(ip) < start + 20:
        return None
    source, target, sequence = struct.unpack_from(">HHI", ip, start)
    begin = start + (ip[start + 12] >> 4) * 4
    names = [str(ipaddress.ip_address(host)) for host in hosts]
    return _Tcp(Address(names[0], source), Address(names[1], target), sequence, ip[start + 13], ip[begin:end])


class _Half:
    """One direction of a stream: the next sequence number, and out-of-order data."""

    def __init__(self, sequence: int) -> None:
        self.next = sequence
        self.early: dict[int, bytes] = {}
        self.early_bytes = 0

    def take(self, sequence: int, data: bytes) -> Iterator[bytes]:
        behind = (self.next - sequence) & 0xFFFFFFFF
        if behind < 1 << 31:
            data, sequence = data[behind:], self.next  # a full or partial retransmission
        if not data:
            return
        if sequence != self.next:
            self.early_bytes += len(data)
            if self.early_bytes > PENDING_BYTES_MAX:
                raise CaptureError(f"{self.early_bytes} bytes follow a segment that is missing in the capture")
            self.early[sequence] = data
            return
        yield data
        self.next = (sequence + len(data)) & 0xFFFFFFFF
        if self.next in self.early:
            following = self.early.pop(self.next)
            self.early_bytes -= len(following)
            yield from self.take(self.next, following)


class _Conversation:
    def __init__(self, name: str, client: Address) -> None:
        self.name = name
        self.client = client
        self.halves: dict[Address, _Half] = {}


def segments_of(data: bytes, port: int | None = None) -> Iterator[Segment]:
    """Yield the bytes of every TCP conversation, each side in order. The server uses `port`, or did not open the connection."""
    conversations: dict[frozenset[Address], _Conversation] = {}
    count = 0
    for packet in packets_of(data):
        tcp = _tcp_of(_ip_of(packet))
        if tcp is None or (port is not None and port not in (tcp.source.port, tcp.target.port)):
            continue
        key = frozenset((tcp.source, tcp.target))
        talk = conversations.get(key)
        is_first = bool(tcp.flags & _SYN) and not tcp.flags & _ACK
        if talk is None or (is_first and tcp.source in talk.halves):
            count += 1
            talk = conversations[key] = _Conversation(f"c{count}", _client(tcp, port))
        half = talk.halves.get(tcp.source)
        if half is None:
            half = talk.halves[tcp.source] = _Half(tcp.sequence + (1 if tcp.flags & _SYN else 0))
        side = Side.CLIENT if tcp.source == talk.client else Side.SERVER
        for piece in half.take(tcp.sequence + (1 if tcp.flags & _SYN else 0), tcp.data):
            yield Segment(packet.time_ns, talk.name, tcp.source, tcp.target, side, piece)


def _client(tcp: _Tcp, port: int | None) -> Address:
    if port is not None:
        return tcp.target if tcp.source.port == port else tcp.source
    return tcp.target if tcp.flags & _SYN and tcp.flags & _ACK else tcp.source
