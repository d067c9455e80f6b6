"""Which settings of the nodes' ports go together."""

from typing import Any

import pytest

from braidlog.model.errors import BrokerError
from braidlog.server.config import load_config
from braidlog.server.peers.gossip import PORT
from braidlog.server.peers.settings import PeersConfig

WRONG = [
    ({"host": "0.0.0.0"}, "need certificates"),
    ({"cert": "a.pem"}, "set ca, cert and key together"),
    ({"gossip_port": 5, "replica_port": 5}, "gossip_port and replica_port must differ"),
    ({"gossip_port": 65536}, "0 to 65535"),
    ({"replication_bytes_per_second": 0}, "at least 1"),
]


@pytest.mark.parametrize(("values", "why"), WRONG)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(BrokerError, match=why):
        load_config(None, {}, {f"cluster.peers.{name}": value for name, value in values.items()})


def test_defaults_are_for_one_machine() -> None:
    config = load_config(None, {}, {}).config.cluster.peers
    assert config == PeersConfig()
    assert (config.gossip_port, config.advertised, config.tls()) == (PORT, "127.0.0.1", None)
    assert PeersConfig(advertised_host="a.example").advertised == "a.example"
