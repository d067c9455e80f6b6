"""What a node shows to members of etcd, and how that is renewed while it runs."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from braidlog.model.errors import BrokerError
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.http_connection import Connection, parse_endpoint
from braidlog.server.peers.settings import PeersConfig

SECONDS_MAX = 60.0


def test_a_renewed_certificate_is_shown_to_etcd_without_a_restart(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(listening)
    authority.configure_trust(listening)
    listening.verify_mode = ssl.CERT_REQUIRED
    shown: asyncio.Queue[str] = asyncio.Queue()
    cert = tmp_path / "client.pem"

    def renew(name: str) -> trustme.LeafCert:
        issued = authority.issue_cert("127.0.0.1", common_name=name)
        issued.private_key_and_cert_chain_pem.write_to_path(cert)
        return issued

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found: Any = writer.get_extra_info("peercert")
        shown.put_nowait(dict(part for (part,) in found["subject"])["commonName"])
        writer.close()

    async def run() -> None:
        first = renew("first")
        server = await asyncio.start_server(note, "127.0.0.1", 0, ssl=listening)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = ClusterConfig(etcd=url, ca=str(tmp_path / "ca.pem"), cert=str(cert))
        tls = config.tls()

        async def who() -> str:
            connection = await Connection.open(parse_endpoint(url), tls)
            connection.close()
            return await shown.get()

        async with server, asyncio.timeout(SECONDS_MAX):
            assert await who() == "first"
            second = renew("second")
            assert await who() == "first"
            config.reload_tls(tls)
            assert await who() == "second"
            cert.write_bytes(first.private_key_pem.bytes() + second.cert_chain_pems[0].bytes())  # halves of two pairs
            with pytest.raises(BrokerError, match=r"TLS with .*client\.pem"):
                config.reload_tls(tls)
            assert await who() == "second"

    asyncio.run(run())


CERTIFIED = PeersConfig(ca="ca.pem", cert="node.pem", key="node.key")


@pytest.mark.parametrize(
    ("place", "peer_url", "listens"),
    [
        ("127.0.0.1", "https://127.0.0.1:2380", "https://127.0.0.1:2380"),
        ("https://127.0.0.1:2380", "https://127.0.0.1:2380", "https://127.0.0.1:2380"),
        ("http://127.0.0.1:2380", "http://127.0.0.1:2380", "http://127.0.0.1:2380"),
    ],
)
def test_the_nodes_certificate_closes_its_member_on_loopback(place: str, peer_url: str, listens: str) -> None:
    """But for what members that exist already call each other by."""
    config = ClusterConfig(etcd="embedded", peers=CERTIFIED, initial_cluster=f"1={place}")
    member = config.member("1")
    assert config.endpoints == ["https://127.0.0.1:2379"]
    assert (member.client_url, member.listen_client_url) == ("https://127.0.0.1:2379", "https://127.0.0.1:2379")
    assert (member.peer_url, member.listen_peer_url) == (peer_url, listens)
    assert member.flags()["client-cert-auth"] == "true"
    assert ClusterConfig(etcd="embedded").member("1").listen_client_url == "http://127.0.0.1:2379"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ClusterConfig(etcd="embedded"), ["nodes use no certificates", "etcd requires no certificate"]),
        (ClusterConfig(etcd="embedded", peers=CERTIFIED), []),
        (
            ClusterConfig(etcd="embedded", peers=CERTIFIED, initial_cluster="1=http://127.0.0.1:1"),
            ["etcd members use no certificates among themselves"],
        ),
        (ClusterConfig(etcd="http://127.0.0.1:1", peers=CERTIFIED), ["etcd requires no credentials"]),
        (ClusterConfig(etcd="http://127.0.0.1:1", peers=CERTIFIED, user="ann", password="word"), []),
    ],
)
def test_ports_that_ask_nobody_are_named(config: ClusterConfig, said: list[str]) -> None:
    assert [each.partition(":")[0].partition(";")[0] for each in config.missing_credentials()] == said


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"silence_ms": 299}, "silence_ms must be 300 to 60000, not 299"),
        ({"silence_ms": 60_001}, "silence_ms must be 300 to 60000, not 60001"),
        (
            {"silence_ms": 1_500},
            "lease_seconds must be 4 to 600 with silence_ms 1500, not 3: 2 nodes agree on a silence",
        ),
        ({"lease_seconds": 1}, "lease_seconds must be 2 to 600 with silence_ms 500, not 1"),
        ({"lease_seconds": 601}, "lease_seconds must be 2 to 600 with silence_ms 500, not 601"),
    ],
)
def test_a_lease_is_longer_than_the_silence_that_two_nodes_find(settings: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ClusterConfig(**settings)  # type: ignore[arg-type]


def test_silence_and_lease_of_a_slow_machine() -> None:
    config = ClusterConfig(silence_ms=3_000, lease_seconds=10)
    assert (config.silence_ms, config.lease_seconds) == (3_000, 10)
