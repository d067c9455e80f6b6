"""The files of a cluster's certificates: whose they are, who can read them, and that none is ever replaced."""

import ssl
import stat
from pathlib import Path

import pytest

from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError
from braidlog.server.peers.certificate_authority import DAYS, make_authority, make_node_certificate
from braidlog.server.peers.certificates import peer_tls

CLOCK = SystemClock()


def test_keys_are_for_their_owner_and_nothing_is_replaced(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "ca", CLOCK)
    node = make_node_certificate(authority, tmp_path / "node", 7, CLOCK, ["127.0.0.1", "seven.example"])
    for pair in (authority, node):
        assert stat.S_IMODE(pair.key.stat().st_mode) == 0o600
    before = node.key.read_bytes()
    with pytest.raises(FileExistsError):
        make_authority(tmp_path / "ca", CLOCK)
    with pytest.raises(FileExistsError):
        make_node_certificate(authority, tmp_path / "node", 7, CLOCK)
    assert node.key.read_bytes() == before


def test_the_name_is_the_nodes_number_and_it_lasts(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, CLOCK)
    pair = make_node_certificate(authority, tmp_path, 7, CLOCK, ["127.0.0.1", "seven.example"])
    shown = ssl._ssl._test_decode_cert(str(pair.certificate))  # type: ignore[attr-defined]
    assert shown["subject"] == ((("commonName", "node-7"),),)
    assert shown["subjectAltName"] == (("DNS", "node-7"), ("IP Address", "127.0.0.1"), ("DNS", "seven.example"))
    ends = ssl.cert_time_to_seconds(shown["notAfter"])
    assert 0 <= CLOCK.now_ms() / 1000 + DAYS * 86_400 - ends < 3600


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, CLOCK)
    pair = make_node_certificate(authority, tmp_path, 7, CLOCK)
    with pytest.raises(BrokerError, match="nowhere"):
        peer_tls(str(authority.certificate), str(pair.certificate), str(tmp_path / "nowhere"))
    with pytest.raises(BrokerError, match="TLS between nodes"):
        peer_tls(str(authority.certificate), str(pair.certificate), str(authority.key))
