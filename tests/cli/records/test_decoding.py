"""`braid consume --decode` against the registry of a real node: values as Confluent's own serializers write them."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.cli.braid import Braid, check, fresh

import braidlog
from braidlog.testing.server import ServerProcess

ORDER = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":["null","string"]}]}'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("decoding") / "data", admin=True) as server:
        yield server


@pytest.fixture
def braid(server: ServerProcess) -> Braid:
    made = Braid(server)
    made.environment["BRAID_REGISTRY_URL"] = server.registry_url
    return made


@pytest.fixture
def topic(braid: Braid, server: ServerProcess) -> str:
    """Two orders by Confluent's serializer, the second with a key that has a schema too; then what has none."""
    name = fresh("orders")
    braid.ok("topic", "create", name)
    context = SerializationContext(name, MessageField.VALUE)
    with SchemaRegistryClient({"url": server.registry_url}) as registry:
        write = AvroSerializer(registry, ORDER)
        first, second = (write({"id": at, "note": note}, context) for at, note in ((1, None), (2, "gift")))
    with braidlog.connect(braid.url) as client, client.producer() as producer:
        for value, key in (
            (first, b"plain"),
            (second, first),
            (b"no schema", None),
            (None, b"gone"),
            (b"nor this", None),
        ):
            producer.send_and_wait(name, value, key=key)
    return name


def test_values_are_printed_by_their_schemas(braid: Braid, topic: str) -> None:
    result = braid("consume", topic, "--decode", "-f", "%k %s\\n")
    lines = result.stdout_bytes.splitlines()
    assert lines[0] == b'plain {"id":1,"note":null}'
    assert lines[1].endswith(b' {"id":2,"note":"gift"}')
    assert lines[2:] == [b" no schema", b"gone ", b" nor this"]
    said = result.stderr.splitlines()
    assert said == [
        (
            f"{topic}/0 at 2: value printed without decoding: no schema id: "
            "a value with one begins with a byte 0 and four bytes of id"
        )
    ]


def test_json_has_what_was_decoded_beside_the_bytes_and_can_be_produced_again(braid: Braid, topic: str) -> None:
    result = braid("consume", topic, "--decode", "--decode-key", "--json", "-n", "2")
    first, second = map(json.loads, result.stdout.splitlines())
    for each in (first, second):
        check("record", each)
    assert (first["decoded"], "decoded_key" in first) == ({"id": 1, "note": None}, False)
    assert (second["decoded"], second["decoded_key"]) == ({"id": 2, "note": "gift"}, {"id": 1, "note": None})
    copy = fresh("copy")
    braid.ok("topic", "create", copy)
    braid.ok("produce", copy, "--json", stdin=result.stdout)
    again = braid("consume", copy, "--decode", "-o", "0", "-n", "2").stdout
    assert again == '{"id":1,"note":null}\n{"id":2,"note":"gift"}\n'


def test_without_a_registry_it_says_so(braid: Braid, topic: str) -> None:
    braid.environment["BRAID_REGISTRY_URL"] = "http://127.0.0.1:1"
    assert "is it the URL of a schema registry?" in braid.fails(5, "consume", topic, "--decode")
    assert "a registry URL has the form http://" in braid.fails(
        2, "consume", topic, "--decode", "--registry", "localhost"
    )
