"""librdkafka says again who it is, on the connection it has, before its time is over (KIP-368): `make interop`."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.interop.kafka.checking import until
from tests.interop.kafka.servers import ADMIN, IS_FULL, JUDGED, PASSWORD, braid_words, certificates

from braidlog.testing.server import ServerProcess

LIFETIME_MS = 10_000
SECONDS_MAX = 120


@pytest.mark.skipif(not IS_FULL or JUDGED != "braid", reason="waits for 20 seconds: make interop")
def test_a_connection_outlives_its_first_word(tmp_path: Path) -> None:
    counted: dict[str, int] = {}

    def take(statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        counted["said"] = max((each["req"].get("SaslAuthenticate", 0) for each in brokers), default=0)
        counted["cut"] = sum(each["disconnects"] for each in brokers)

    words = [*braid_words("sasl", tmp_path, certificates(tmp_path))]
    words += ["--set", f"listeners.kafka.reauthentication_ms={LIFETIME_MS}"]
    failures: list[object] = []
    with ServerProcess(tmp_path / "data", *words) as node:
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{node.ports['kafka']}",
                "broker.address.family": "v4",
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": ADMIN,
                "sasl.password": PASSWORD,
                "statistics.interval.ms": 200,
                "stats_cb": take,
            }
        )

        def said_again() -> bool:
            producer.produce("t", b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
            producer.poll(0.5)
            return counted.get("said", 0) >= 3

        until(said_again, "two more times", SECONDS_MAX)
        assert producer.flush(SECONDS_MAX) == 0
    assert (failures, counted["cut"]) == ([], 0)
