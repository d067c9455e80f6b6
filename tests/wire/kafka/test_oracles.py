"""Our bytes are the bytes of two other implementations, and theirs read as what was said: every API, version and direction."""

import random
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet
from tests.wire.kafka import oracles
from tests.wire.kafka.values import make

from braidlog.wire.kafka.apis import APIS, Api, Key
from braidlog.wire.kafka.compiler import read_message, write_message
from braidlog.wire.kafka.messages.cluster import ApiVersionsResponse
from braidlog.wire.kafka.rows import Message

SAMPLES = 12
UNKNOWN_TO_KAFKA_PYTHON = {Key.UNREGISTER_BROKER, Key.CONSUMER_GROUP_HEARTBEAT, Key.CONSUMER_GROUP_DESCRIBE}
"""kio alone is asked about these."""


def cases(apis: Iterable[Api]) -> list[ParameterSet]:
    return [
        pytest.param(api, message, version, id=f"{message.__name__}-v{version}")
        for api in apis
        for message in (api.request, api.response)
        for version in range(api.versions.first, api.versions.last + 1)
    ]


CASES = cases(APIS)


def samples(message: type[Message], version: int) -> list[Message]:
    return [
        make(message, version, random.Random(f"{message.__name__} {version} {sample}")) for sample in range(SAMPLES)
    ]


def written(api: Api, message: Message, version: int) -> bytes:
    out: list[bytes] = []
    write_message(message, version, out.append, flexible=api.is_flexible(version))
    return b"".join(out)


def read(api: Api, message: type[Message], version: int, data: bytes) -> Message:
    found, end = read_message(message, version, data, 0, flexible=api.is_flexible(version))
    assert end == len(data)
    return found


@pytest.mark.parametrize(
    ("api", "message", "version"), cases(api for api in APIS if api.key not in UNKNOWN_TO_KAFKA_PYTHON)
)
def test_kafka_python_agrees(api: Api, message: type[Message], version: int) -> None:
    for sample in samples(message, version):
        theirs = oracles.kafka_python_bytes(sample, version)
        assert written(api, sample, version) == theirs
        assert read(api, message, version, theirs) == sample
        if isinstance(sample, ApiVersionsResponse) and sample.error_code:
            continue  # it reads every such answer as version 0
        assert oracles.kafka_python_read(message, version, theirs) == sample


@pytest.mark.parametrize(("api", "message", "version"), CASES)
def test_kio_agrees(api: Api, message: type[Message], version: int) -> None:
    kind = oracles.kio_class(api, message, version)
    for wild in samples(message, version):
        sample = oracles.tamed(wild, version, kind)
        theirs = oracles.kio_bytes(api, sample, version)
        assert written(api, sample, version) == theirs
        assert read(api, message, version, theirs) == sample
        assert oracles.kio_read(api, message, version, theirs) == sample


@pytest.mark.parametrize(("api", "message", "version"), CASES)
def test_what_may_be_null_may_be_null_there(api: Api, message: type[Message], version: int) -> None:
    """Neither writes the other's bytes wrong for it, so that bytes alone do not show it."""
    for path, ours, theirs in oracles.nullables(api, message, version):
        assert ours == theirs, path
