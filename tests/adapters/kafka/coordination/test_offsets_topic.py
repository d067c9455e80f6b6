"""`__consumer_offsets` is there for tools that look for it, and for nothing else."""

import pytest
from tests.adapters.kafka.asker import Asker
from tests.adapters.kafka.client import batch_of, fetch_of, produce_of
from tests.adapters.kafka.clients import AdminClient

from braidlog.adapters.kafka.coordination.offsets_topic import (
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
    OFFSETS_TOPIC_ID,
    TRANSACTIONS_TOPIC,
)
from braidlog.coordinator.shards import STATE_SETTINGS
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.messages import transactions as t

TOPIC = 2
"""The resource type of DescribeConfigs."""


@pytest.fixture
def server(braid_server_shared: ServerProcess) -> ServerProcess:
    return braid_server_shared


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(None, id="all"),
        pytest.param([c.MetadataRequestTopic(name=OFFSETS_TOPIC)], id="by name"),
        pytest.param([c.MetadataRequestTopic(OFFSETS_TOPIC_ID, None)], id="by id"),
    ],
)
def test_it_is_seen_as_an_internal_topic_that_the_coordinator_leads(
    asker: Asker, asked: list[c.MetadataRequestTopic] | None
) -> None:
    told = asker.ask(c.MetadataRequest(asked))
    (seen,) = [each for each in told.topics if each.name == OFFSETS_TOPIC]
    assert (seen.error_code, seen.is_internal, seen.topic_id) == (0, True, OFFSETS_TOPIC_ID)
    assert [(each.partition_index, each.leader_id, each.isr_nodes) for each in seen.partitions] == [
        (number, 0, [0]) for number in range(OFFSETS_PARTITIONS)
    ]
    assert not any(each.is_internal for each in told.topics if each is not seen)


def test_it_is_described(asker: Asker) -> None:
    asked = c.DescribeTopicPartitionsRequest([c.DescribeTopicPartitionsRequestTopic(OFFSETS_TOPIC)], 2000)
    (seen,) = asker.ask(asked).topics
    assert (seen.error_code, seen.is_internal, len(seen.partitions)) == (0, True, OFFSETS_PARTITIONS)


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_its_settings_are_those_of_the_coordinators_shards(asker: Asker, name: str) -> None:
    """`kafka-topics --at-min-isr-partitions` looks for `min.insync.replicas` of each topic."""
    resource = m.DescribeConfigsRequestResource(TOPIC, name)
    (settings,) = asker.ask(m.DescribeConfigsRequest([resource])).results
    shown = {each.name: each.value for each in settings.configs}
    assert shown["min.insync.replicas"] == "1"
    assert "compact" in shown["cleanup.policy"]
    assert shown["segment.bytes"] == str(STATE_SETTINGS.segment_bytes)
    assert all(each.read_only for each in settings.configs)


def test_it_has_no_records_and_takes_none(asker: Asker) -> None:
    for time, offset in ((-1, 0), (-2, 0), (-3, -1), (-4, 0), (-5, -1), (-6, -1), (5, -1)):
        partitions = [
            d.ListOffsetsRequestPartition(number, timestamp=time)
            for number in (OFFSETS_PARTITIONS - 1, OFFSETS_PARTITIONS)
        ]
        (told,) = asker.ask(d.ListOffsetsRequest(topics=[d.ListOffsetsRequestTopic(OFFSETS_TOPIC, partitions)])).topics
        there, missing = told.partitions
        assert (there.error_code, there.offset, missing.error_code) == (0, offset, E.UNKNOWN_TOPIC_OR_PARTITION)
    (written,) = asker.ask(t.DescribeProducersRequest([t.DescribeProducersRequestTopic(OFFSETS_TOPIC, [0])])).topics
    assert (written.partitions[0].error_code, written.partitions[0].active_producers) == (0, [])
    (fetched,) = asker.ask(fetch_of((OFFSETS_TOPIC, 0, 0)), 12).responses
    assert fetched.partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    (produced,) = asker.ask(produce_of((OFFSETS_TOPIC, 0, batch_of(b"x"))), 9).responses
    assert produced.partition_responses[0].error_code
    (made,) = asker.ask(m.CreateTopicsRequest([m.CreateTopicsRequestTopic(OFFSETS_TOPIC, 1, 1)])).topics
    assert made.error_code == E.INVALID_TOPIC
    (deleted,) = asker.ask(m.DeleteTopicsRequest([m.DeleteTopicsRequestTopic(OFFSETS_TOPIC)])).responses
    assert deleted.error_code
    (grown,) = asker.ask(m.CreatePartitionsRequest([m.CreatePartitionsRequestTopic(OFFSETS_TOPIC, 3)])).results
    assert grown.error_code


def test_librdkafka_lists_it(braid_server_shared: ServerProcess) -> None:
    seen = AdminClient({"bootstrap.servers": braid_server_shared.bootstrap()}).list_topics(timeout=60)
    assert len(seen.topics[OFFSETS_TOPIC].partitions) == OFFSETS_PARTITIONS
