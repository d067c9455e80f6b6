"""A job of Spark's Kafka connector moves by one word: its options mean here what they meant there, or are named."""

import logging

import pytest

from braidlog.client.schemes import parse_url
from braidlog.spark import options
from braidlog.spark.kafka_options import understood
from braidlog.spark.options import OptionError
from braidlog.spark.sink.options import Settings
from braidlog.spark.source.options import Query

NODES = {"kafka.bootstrap.servers": "n1:9092,n2:9093"}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a b" password="s@\\"cret";'


def test_credentials_and_tls_become_a_url() -> None:
    found, idle = understood(
        {
            **NODES,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": JAAS,
            "kafka.ssl.truststore.location": "/etc/ca certs.pem",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.max.poll.records": "500",
            "subscribe": "t",
        }
    )
    assert idle == ["kafka.max.poll.records"]
    assert set(found) == {"kafka.bootstrap.servers", "subscribe"}
    target = parse_url(found["kafka.bootstrap.servers"])
    assert (target.tls, target.principal, target.token) == (True, "a b", 's@"cret')
    assert target.nodes == (("n1", 9092), ("n2", 9093))
    assert target.options == {"sasl": "SCRAM-SHA-512", "cafile": "/etc/ca certs.pem"}


def test_both_directions_take_them_and_say_what_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    options.warn_once.cache_clear()
    login = {"kafka.security.protocol": "sasl_plaintext", "kafka.sasl.jaas.config": JAAS}
    with caplog.at_level(logging.WARNING, "braidlog.spark"):
        query = Query({**NODES, **login, "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "9"}, streaming=True)
        settings = Settings({**NODES, **login, "topic": "t", "kafka.compression.type": "lz4"}, streaming=True)
    assert query.servers == settings.servers == "kafka://a%20b:s%40%22cret@n1:9092,n2:9093"
    assert settings.compression == "lz4"
    assert [record.getMessage() for record in caplog.records] == [
        "option kafkaConsumer.pollTimeoutMs tunes Kafka's Java client and has no effect here"
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.jaas.config: it must be set if"),
        ({"kafka.sasl.jaas.config": JAAS}, "kafka.sasl.jaas.config: it must be set if"),
        ({"kafka.security.protocol": "TLS"}, "it must be one of PLAINTEXT, SSL"),
        ({"kafka.ssl.truststore.location": "/x.jks", "kafka.security.protocol": "SSL"}, "files must be PEM: set"),
        ({"kafka.ssl.truststore.type": "PEM"}, "it requires kafka.security.protocol = SSL or SASL_SSL"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.endpoint.identification.algorithm": ""},
            "the server's name is always verified",
        ),
        (
            {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.jaas.config": "Krb5LoginModule required"},
            "other login modules are Java's",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_without_the_secret(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        understood({**NODES, **given})
    assert said in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_url_says_it_by_itself() -> None:
    with pytest.raises(OptionError, match="a URL already contains it"):
        understood({"servers": "kafka+tls://n:1", "kafka.security.protocol": "SSL"})
