"""The schema registry over HTTP: Confluent's client and serializers, unmodified; codes; who may; what a restart finds."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from tests.console.asking import Answer, ask
from tests.console.waiting import until

import braidlog
from braidlog.broker.schemas.schema_log import TOPIC
from braidlog.testing.server import ServerProcess

JSON_TYPE = "application/vnd.schemaregistry.v1+json"
USER = '{"type":"record","name":"User","fields":[{"name":"name","type":"string"}]}'
USER_2 = (
    '{"type":"record","name":"User","fields":[{"name":"name","type":"string"},{"name":"age","type":"int","default":7}]}'
)


@pytest.fixture(scope="module")
def client(node: ServerProcess) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": node.registry_url}) as made:
        yield made


def send(node: ServerProcess, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    named = {"content_type": JSON_TYPE, **headers} if data is not None else headers
    return ask(f"{node.registry_url}{path}", method, body=data, **named)


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def refused(code: int, call: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(SchemaRegistryError) as caught:
        call(*args)
    assert caught.value.error_code == code
    assert caught.value.http_status_code == (code if code < 1000 else code // 100)


def test_confluents_client_registers_finds_and_deletes(client: SchemaRegistryClient) -> None:
    user, user_2 = (each.replace('"User"', '"Own"') for each in (USER, USER_2))  # no other subject has these
    first = client.register_schema("users/eu-value", Schema(user, "AVRO"))
    assert client.register_schema("users/eu-value", Schema(user_2, "AVRO")) == first + 1
    client.clear_caches()
    assert client.get_schema(first).schema_str == user
    assert client.get_versions("users/eu-value") == [1, 2]
    assert client.get_version("users/eu-value", 1).schema_id == first
    assert client.get_latest_version("users/eu-value").version == 2
    assert client.lookup_schema("users/eu-value", Schema(user_2, "AVRO")).version == 2
    assert client.get_subjects(subject_prefix="users/") == ["users/eu-value"]
    assert client.get_subjects_by_schema_id(first) == ["users/eu-value"]
    assert [each.version for each in client.get_schema_versions(first)] == [1]
    assert set(client.get_schema_types()) == {"AVRO", "JSON", "PROTOBUF"}
    assert client.get_contexts() == ["."]
    bad = Schema('{"type":"record","name":"Own","fields":[{"name":"x","type":"int"}]}', "AVRO")
    assert not client.test_compatibility("users/eu-value", bad)
    assert client.test_compatibility_all_versions("users/eu-value", Schema(user_2, "AVRO"))
    refused(409, client.register_schema, "users/eu-value", bad)
    refused(42201, client.register_schema, "users/eu-value", Schema('{"type":"nope"}', "AVRO"))
    refused(40403, client.lookup_schema, "users/eu-value", bad)
    refused(40401, client.get_versions, "nobody")
    refused(40402, client.get_version, "users/eu-value", 9)
    refused(40403, client.get_schema, 4711)
    assert client.delete_version("users/eu-value", 1) == 1
    assert client.get_versions("users/eu-value") == [2]
    assert client.get_versions("users/eu-value", deleted=True) == [1, 2]
    assert client.delete_subject("users/eu-value") == [2]
    client.clear_caches()
    assert client.get_schema(first).schema_str == user, "who has its records still reads them"
    assert client.delete_subject("users/eu-value", permanent=True) == [1, 2]
    client.clear_caches()
    refused(40403, client.get_schema, first)


def test_levels_and_modes_by_confluents_client(client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == "BACKWARD"
    refused(40408, client.get_compatibility, "levels-value")
    assert client.set_compatibility("levels-value", "FULL_TRANSITIVE") == {"compatibility": "FULL_TRANSITIVE"}
    assert client.get_compatibility("levels-value") == "FULL_TRANSITIVE"
    refused(42203, client.set_compatibility, "levels-value", "SIDEWAYS")
    client.delete_config("levels-value")
    refused(40408, client.get_compatibility, "levels-value")
    assert client.get_global_mode() == "READWRITE"
    assert client.update_mode("levels-value", "READONLY") == "READONLY"
    refused(42205, client.register_schema, "levels-value", Schema('"int"', "AVRO"))
    assert client.delete_mode("levels-value") == "READONLY"
    refused(40409, client.get_mode, "levels-value")
    refused(42204, client.update_mode, "levels-value", "SIDEWAYS")


def test_avro_json_and_protobuf_through_confluents_serializers(client: SchemaRegistryClient) -> None:
    avro = AvroSerializer(client, USER_2)
    data = avro({"name": "ada", "age": 36}, value_of("avro"))
    assert data is not None
    assert AvroDeserializer(client)(data, value_of("avro")) == {"name": "ada", "age": 36}
    shape = '{"title":"User","type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
    data = JSONSerializer(shape, client)({"name": "ada"}, value_of("json"))
    assert data is not None
    assert JSONDeserializer(None, schema_registry_client=client)(data, value_of("json")) == {"name": "ada"}
    kind = order_class()
    order = kind(id=7, price={"cents": 250})
    data = ProtobufSerializer(kind, client, {"use.deprecated.format": False})(order, value_of("proto"))
    assert data is not None
    # The file that it imports was registered first, and is referred to.
    assert client.get_latest_version("proto-value").schema.references == [SchemaReference(MONEY, MONEY, 1)]
    assert "message Order" in client.get_latest_version("proto-value").schema.schema_str
    assert ProtobufDeserializer(kind, {"use.deprecated.format": False}, client)(data, value_of("proto")) == order


MONEY = "registry_test/money.proto"


def order_class() -> Any:
    """A message whose file imports another, made by Google's library as a compiler's output makes it."""
    optional, number, whole = F.LABEL_OPTIONAL, F.TYPE_INT64, F.TYPE_MESSAGE
    pool = descriptor_pool.DescriptorPool()
    money = descriptor_pb2.FileDescriptorProto(name=MONEY, package="money", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=number, label=optional)
    order = descriptor_pb2.FileDescriptorProto(name="registry_test/order.proto", dependency=[MONEY], syntax="proto3")
    fields = order.message_type.add(name="Order").field
    fields.add(name="id", number=1, type=number, label=optional)
    fields.add(name="price", number=2, type=whole, type_name=".money.Money", label=optional)
    pool.Add(money)
    pool.Add(order)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))


def test_references_by_confluents_client(client: SchemaRegistryClient) -> None:
    client.register_schema("color", Schema('{"type":"enum","name":"Color","symbols":["RED"]}', "AVRO"))
    car = Schema(
        '{"type":"record","name":"Car","fields":[{"name":"color","type":"Color"}]}',
        "AVRO",
        [SchemaReference("Color", "color", 1)],
    )
    number = client.register_schema("cars-value", car)
    client.clear_caches()
    assert client.get_schema(number).references == [SchemaReference("Color", "color", 1)]
    assert client.get_referenced_by("color", 1) == [number]
    refused(42206, client.delete_subject, "color")
    refused(42201, client.register_schema, "cars-value", Schema(car.schema_str, "AVRO"))


def test_many_at_once_get_each_an_id_of_its_own(node: ServerProcess) -> None:
    def register(number: int) -> int:
        text = json.dumps({"type": "fixed", "name": "F", "size": number})
        return int(send(node, "POST", f"/subjects/many{number % 5}-{number}/versions", {"schema": text}).json()["id"])

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(register, range(40)))
        assert len(set(ids)) == 40
        assert list(pool.map(register, range(40))) == ids


def test_answers_are_confluents_to_the_letter(node: ServerProcess) -> None:
    made = send(node, "POST", "/subjects/exact-value/versions", {"schema": USER, "schemaType": "AVRO"})
    number = made.json()["id"]
    assert (made.status, made.headers["content-type"], made.json()) == (200, JSON_TYPE, {"id": number})
    told = {"subject": "exact-value", "version": 1, "id": number, "schema": USER}
    assert send(node, "GET", "/subjects/exact-value/versions/latest").json() == told
    assert send(node, "GET", "/subjects/exact-value/versions/-1").json() == told
    assert send(node, "POST", "/subjects/exact-value", {"schema": USER}).json() == told
    assert send(node, "GET", "/subjects/exact-value/versions/1/schema").text == USER
    assert send(node, "GET", f"/schemas/ids/{number}").json() == {"schema": USER}
    assert send(node, "GET", f"/schemas/ids/{number}/schema").text == USER
    assert told in send(node, "GET", "/schemas?subjectPrefix=exact").json()
    assert send(node, "GET", "/subjects?subjectPrefix=exact&limit=0").json() == []
    assert send(node, "GET", "/config/exact-value?defaultToGlobal=true").json() == {"compatibilityLevel": "BACKWARD"}
    verbose = send(
        node,
        "POST",
        "/compatibility/subjects/exact-value/versions/latest?verbose=true",
        {"schema": '{"type":"record","name":"User","fields":[{"name":"x","type":"int"}]}'},
    ).json()
    assert not verbose["is_compatible"]
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in verbose["messages"][0]
    for method, path, body, code in [
        ("GET", "/subjects/nobody/versions", None, 40401),
        ("GET", "/subjects/exact-value/versions/2", None, 40402),
        ("GET", "/subjects/exact-value/versions/0", None, 42202),
        ("GET", "/subjects/exact-value/versions/x", None, 42202),
        ("GET", "/schemas/ids/99999", None, 40403),
        ("POST", "/subjects/exact-value/versions", {"schema": ""}, 42201),
        ("POST", "/subjects/exact-value/versions", {"schema": USER, "schemaType": "XML"}, 42201),
        ("POST", "/subjects/exact-value/versions", {"schema": USER, "metadata": {"a": 1}}, 42201),
        ("POST", "/subjects/%00/versions", {"schema": USER}, 42208),
        ("PUT", "/config", {"compatibility": 7}, 42203),
        ("GET", "/nowhere", None, 404),
        ("PUT", "/subjects", {}, 405),
    ]:
        answer = send(node, method, path, body)
        assert (answer.status, answer.json()["error_code"]) == (code if code < 1000 else code // 100, code), path


def test_what_no_client_sends_is_not_served(node: ServerProcess) -> None:
    path, body = f"{node.registry_url}/subjects/forged/versions", json.dumps({"schema": USER}).encode()
    assert ask(path, "POST", body=body, content_type="text/plain").status == 415
    assert ask(path, "POST", body=body, content_type=JSON_TYPE, origin="http://evil.example").status == 403
    assert ask(path, "POST", body=body, content_type=JSON_TYPE, host="evil.example").status == 403
    assert ask(path, "POST", body=b"[1", content_type=JSON_TYPE).json()["error_code"] == 42201
    assert ask(path, "POST", body=b"x" * (3 << 20), content_type=JSON_TYPE).status == 422
    assert send(node, "GET", "/subjects/forged/versions").status == 404
    assert ask(f"{node.admin_url}/subjects").status == 404, "it is on a port of its own"
    assert send(node, "GET", "/healthz").status == 404


def test_the_console_lists_subjects(node: ServerProcess) -> None:
    send(node, "POST", "/subjects/<page>-value/versions".replace("<", "%3C"), {"schema": USER})
    page = ask(f"{node.admin_url}/schemas").text
    assert "&lt;page&gt;-value" in page
    assert "BACKWARD" in page


def test_a_restart_finds_all_of_it_in_a_compacted_topic(tmp_path: Path) -> None:
    """Also where the pages are off; and the topic is what Confluent's tools read: keys and values of JSON."""
    arguments = [part for each in ("admin.pages=false", "admin.sign_in=true") for part in ("--set", each)]
    with ServerProcess(tmp_path, *arguments, admin=True) as node:
        assert send(node, "GET", "/subjects").json() == []
        number = send(node, "POST", "/subjects/kept-value/versions", {"schema": USER}).json()["id"]
        # A browser is not sent to a page that is not there, to sign in.
        told = ask(f"{node.admin_url}/", accept="text/html")
        assert told.status == 401
        assert told.json()["error"].startswith("no way to authenticate: set admin.token")
        assert ask(f"{node.admin_url}/healthz").status == 200
        node.kill()
        node.restart()
        assert send(node, "GET", f"/schemas/ids/{number}").json() == {"schema": USER}
        with braidlog.connect(f"kafka://{node.bootstrap()}") as client:
            settings = {each.name: each.value for each in client.admin.topic_settings(TOPIC)}
            assert settings["cleanup.policy"] == "compact"
            consumer = client.consumer()
            consumer.assign(TOPIC, start="earliest")
            found = consumer.poll(timeout=60)
        key, value = found[0].key, found[0].value
        assert key is not None
        assert value is not None
        assert json.loads(key) == {"keytype": "SCHEMA", "subject": "kept-value", "version": 1, "magic": 1}
        assert json.loads(value)["schema"] == USER
        # Somebody deletes the topic: the registry is as empty as its log.
        with braidlog.connect(f"kafka://{node.bootstrap()}") as client:
            client.admin.delete_topic(TOPIC)
        assert send(node, "GET", "/subjects").json() == []
        assert send(node, "POST", "/subjects/new-value/versions", {"schema": '"int"'}).json() == {"id": 1}


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def test_a_subject_has_the_rules_of_its_topic(tmp_path: Path) -> None:
    settings = tmp_path / "braid.toml"
    settings.write_text(
        "[auth]\nfailure_delay_seconds = 0.0\nfailure_delay_seconds_max = 0.0\n"
        f'[auth.tokens]\nwriter = "{hashed("w")}"\nreader = "{hashed("r")}"\nboss = "{hashed("b")}"\n'
        '[[auth.rules]]\nprincipal = "writer"\noperations = ["write"]\ntopic = "orders"\n'
        '[[auth.rules]]\nprincipal = "reader"\noperations = ["read"]\ntopic = "orders"\n'
        '[[auth.rules]]\nprincipal = "boss"\noperations = ["*"]\n'
        f'[admin]\ntoken = "{hashed("admin")}"\n'
    )

    with ServerProcess(tmp_path / "data", "--config", str(settings), admin=True) as node:

        def by(who: str, secret: str, method: str, path: str, body: Any = None) -> Answer:
            shown = base64.b64encode(f"{who}:{secret}".encode()).decode()
            return send(node, method, path, body, authorization=f"Basic {shown}")

        path, body = "/subjects/orders-value/versions", {"schema": USER}
        assert send(node, "GET", "/subjects").status == 401
        assert send(node, "GET", "/subjects").headers["www-authenticate"].startswith("Basic")
        assert by("writer", "wrong", "GET", "/subjects").status == 401
        assert by("reader", "r", "POST", path, body).status == 403
        made = by("writer", "w", "POST", path, body)
        assert made.status == 200, made.text
        assert by("writer", "w", "POST", "/subjects/other-value/versions", body).status == 403
        assert by("boss", "b", "POST", "/subjects/other-value/versions", {"schema": '"int"'}).status == 200
        assert by("reader", "r", "GET", "/subjects").json() == ["orders-value"]
        assert by("boss", "b", "GET", "/subjects").json() == ["orders-value", "other-value"]
        assert by("reader", "r", "GET", f"/schemas/ids/{made.json()['id']}").status == 200
        assert by("reader", "r", "GET", "/schemas/ids/2").json()["error_code"] == 40403, "of a topic it may not know"
        assert by("writer", "w", "DELETE", "/subjects/orders-value").status == 403
        assert by("writer", "w", "PUT", "/config", {"compatibility": "NONE"}).status == 403
        assert by("boss", "b", "PUT", "/config", {"compatibility": "NONE"}).status == 200
        assert send(node, "GET", "/subjects", authorization="Bearer admin").json() == ["orders-value", "other-value"]
        with SchemaRegistryClient({"url": node.registry_url, "basic.auth.user.info": "reader:r"}) as client:
            assert client.get_latest_version("orders-value").schema.schema_str == USER


def test_with_an_admin_token_alone_the_registry_asks_for_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--set", f"admin.token={hashed('admin')}", admin=True) as node:
        path, body = "/subjects/orders-value/versions", {"schema": USER}
        for refused_ in (send(node, "GET", "/subjects"), send(node, "POST", path, body)):
            assert (refused_.status, "or the admin token" in refused_.text) == (401, True)
        assert send(node, "GET", "/subjects", authorization="Bearer wrong").status == 401
        assert send(node, "POST", path, body, authorization="Bearer admin").status == 200
        with SchemaRegistryClient({"url": node.registry_url, "basic.auth.user.info": "any:admin"}) as client:
            assert client.get_subjects() == ["orders-value"]


def test_a_port_that_is_taken_costs_a_node_its_registry_and_nothing_else(node: ServerProcess, tmp_path: Path) -> None:
    taken = f"registry.port={node.registry_port}"
    with ServerProcess(tmp_path, "--set", taken, admin=True) as other:
        assert other.registry_port is None
        assert ask(f"{other.admin_url}/healthz").status == 200
        assert "there is no schema registry" in other.errors()


def test_the_asynchronous_client_works_too(node: ServerProcess) -> None:
    from confluent_kafka.schema_registry import AsyncSchemaRegistryClient  # noqa: PLC0415 - not in older releases

    async def scene() -> None:
        async with AsyncSchemaRegistryClient({"url": node.registry_url}) as client:
            number = await client.register_schema("async-value", Schema('"string"', "AVRO"))
            assert (await client.get_schema(number)).schema_str == '"string"'

    asyncio.run(scene())


def test_a_subjects_page_shows_every_version(node: ServerProcess, client: SchemaRegistryClient) -> None:
    first = client.register_schema("paged/eu-value", Schema(USER, "AVRO"))
    client.register_schema("paged/eu-value", Schema(USER_2, "AVRO"))
    listed = ask(f"{node.admin_url}/schemas").text
    assert '<a href="/schemas/paged/eu-value">paged/eu-value</a>' in listed
    page = ask(f"{node.admin_url}/schemas/paged/eu-value").text
    assert [int(each) for each in re.findall(r'<tr><td class="n">(\d+)</td>', page)] == [2, 1]
    assert f'<td class="n">{first}</td>' in page
    assert "&#34;age&#34;" in page
    assert "  &#34;fields&#34;: [\n" in page  # a line for each member
    assert ask(f"{node.admin_url}/schemas/nobodys").status == 404
    until(lambda: f'data-key="{TOPIC}"' in ask(f"{node.admin_url}/topics?internal=1").text)
    assert f'data-key="{TOPIC}"' not in ask(f"{node.admin_url}/topics").text


def test_who_changes_the_registry_has_an_audit_line(node: ServerProcess) -> None:
    body = {"schema": USER}
    first, again = (send(node, "POST", "/subjects/audited-value/versions", body) for _ in range(2))
    assert first.status == again.status == 200
    assert send(node, "POST", "/subjects/audited-value/versions", {"schema": '"int"'}).status == 409
    assert send(node, "POST", "/compatibility/subjects/audited-value/versions", body).status == 200
    assert send(node, "DELETE", "/subjects/audited-value").status == 200
    assert send(node, "DELETE", "/subjects/audited-value").status == 404
    found = [line for line in node.errors().splitlines() if "braidlog.audit" in line and "audited-value" in line]
    made, unfit, done, refused_again = (line.partition("braidlog.audit: ")[2] for line in found)
    by = "by 'anonymous' from 127.0.0.1 over registry"
    assert made == f"POST /subjects/audited-value/versions status=200: {by}", "once: the second changed nothing"
    assert unfit.startswith("POST /subjects/audited-value/versions refused (Schema being registered is incompatible")
    assert done == "DELETE /subjects/audited-value status=200: by 'anonymous' from 127.0.0.1 over registry"
    assert "refused (Subject 'audited-value' was soft deleted" in refused_again


def records(count: int, *, more: bool = False) -> list[Any]:
    fields = [{"name": "field", "type": "int"}] + [{"name": "more", "type": "int", "default": 0}] * more
    return [{"type": "record", "name": f"Record{each}", "fields": fields} for each in range(count)]


def objects(count: int, kind: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "object", "properties": {f"p{each}": {"type": kind}}} for each in range(count)]}


def memory_peak(node: ServerProcess) -> int:
    """Of the node and its children, each by itself: the largest that one of them ever had, in bytes."""
    pids = [node.pid, *map(int, Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split())]
    told = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return max(int(line.split()[1]) for text in told for line in text.splitlines() if line.startswith("VmHWM")) * 1024


def test_large_comparisons_are_bounded(node: ServerProcess) -> None:
    """Unions of thousands of records in another order, and alternatives that fit nothing."""

    def register(subject: str, schema: Any, kind: str = "AVRO") -> Answer:
        body = {"schema": json.dumps(schema), "schemaType": kind}
        return send(node, "POST", f"/subjects/{subject}/versions", body)

    assert register("union-value", records(3000)).status == 200
    again = register("union-value", records(3000, more=True)[::-1])
    assert again.status == 200 or "takes more than 5 s" in again.text, "a busy machine may need longer"
    assert register("any-value", objects(1500, "string"), "JSON").status == 200
    wide = register("any-value", objects(1500, "integer"), "JSON")
    assert (wide.status, wide.json()["error_code"]) == (422, 42201)
    assert "use fewer branches" in wide.json()["message"]
    assert memory_peak(node) < 400 << 20


LONG = "n" * 300_000
BOMBS = {
    "names": ("AVRO", {"type": "record", "name": "R", "namespace": LONG, "fields": [
        {"name": f"f{each}", "type": {"type": "fixed", "name": f"F{each}", "size": 1}} for each in range(8000)]}),
    "aliases": ("AVRO", {"type": "fixed", "name": "F", "size": 1, "namespace": LONG, "aliases": ["a"] * 100_000}),
    "faults": ("JSON", {"properties": {LONG: {"properties": {f"p{each}": {"required": 1} for each in range(20_000)}}}}),
    "places": ("JSON", {"properties": {LONG: {"properties": {f"p{each}": {"items": {}} for each in range(30_000)}}}}),
    "packages": ("PROTOBUF", f'syntax="proto3";package {LONG};' + "".join(f"message M{n}{{}}" for n in range(25_000))),
    "scopes": ("PROTOBUF", f'syntax="proto3";package {".".join("p" * 90_000)};message M{{M f=1;}}'),
}  # fmt: skip
"""Texts whose names and places would take gigabytes, or minutes."""


@pytest.mark.parametrize("bomb", BOMBS)
def test_reading_a_large_schema_is_bounded(node: ServerProcess, bomb: str) -> None:
    kind, schema = BOMBS[bomb]
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body = {"schema": text, "schemaType": kind}
    subject = f"/subjects/{bomb}-value"
    for path in (f"{subject}/versions", subject, f"/compatibility{subject}/versions"):
        answer = send(node, "POST", path, body)
        assert answer.status in (200, 404, 422), answer.text[:200]
        if answer.status == 422:
            assert re.search("use shorter names|use a package of fewer names", answer.json()["message"])
    assert memory_peak(node) < 400 << 20


def test_other_calls_do_not_wait_while_a_large_schema_is_read(node: ServerProcess) -> None:
    path = "/subjects/large-value/versions"
    large = {"schema": json.dumps(records(1000))}
    made = send(node, "POST", path, large)
    assert made.status == 200
    pid = comparing(node)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            unread = pool.submit(
                send, node, "POST", "/subjects/larger-value/versions", {"schema": json.dumps(records(2000))}
            )
            assert send(node, "POST", path, large).json() == made.json(), "it is remembered"
            assert send(node, "POST", "/subjects/small-value/versions", {"schema": '"long"'}).status == 200
            assert not unread.done() or unread.result().status == 422, "ended after its 5 s"
            os.kill(pid, signal.SIGCONT)
            unread.result(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert send(node, "POST", "/subjects/larger-value/versions", {"schema": json.dumps(records(2000))}).status == 200


def test_large_protobuf_schemas_are_read_by_their_meaning(node: ServerProcess) -> None:
    fields = "".join(f"  int32 field_{each} = {each};\n" for each in range(1, 1500))
    text = f'syntax = "proto3";\nmessage Large {{\n{fields}}}\n'
    path, body = "/subjects/proto-large-value", {"schema": text, "schemaType": "PROTOBUF"}
    number = send(node, "POST", f"{path}/versions", body).json()["id"]
    again = {**body, "schema": text.replace("\n  int32", " int32")}
    assert send(node, "POST", path, again).json()["id"] == number
    assert send(node, "POST", f"{path}/versions", again).json() == {"id": number}
    descriptor = send(node, "GET", f"/schemas/ids/{number}?format=serialized").json()["schema"]
    made = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(descriptor))
    assert len(made.message_type[0].field) == 1499


def test_wrong_schemas_are_refused_in_a_short_sentence(node: ServerProcess) -> None:
    for kind, text in (
        ("AVRO", json.dumps({"type": "record", "name": "R", "fields": [], "doc": "\ud800"})),
        ("JSON", json.dumps({"title": "\ud800"})),
        ("JSON", json.dumps({"properties": {"k" * 5000: {"required": 1}}})),
        ("PROTOBUF", f'syntax="proto3"; message M {{ int32 a = 0x{"f" * 9000}; }}'),
    ):
        answer = send(node, "POST", "/subjects/short-value/versions", {"schema": text, "schemaType": kind})
        assert (answer.status, answer.json()["error_code"]) == (422, 42201), answer.text[:200]
        assert len(answer.json()["message"]) < 1100


def comparing(node: ServerProcess) -> int | None:
    """The process that compares, known by how much memory it may have."""
    for pid in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split():
        if str(256 << 20) in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"):
            return int(pid)
    return None


def test_other_calls_do_not_wait_for_a_comparison(node: ServerProcess) -> None:
    body = {"schema": USER.replace('"User"', '"Waits"')}
    later = {"schema": USER_2.replace('"User"', '"Waits"')}
    path = "/subjects/waits-value/versions"
    assert send(node, "POST", path, body).status == send(node, "POST", path, later).status == 200
    assert send(node, "POST", path, body).status == 200
    pid = comparing(node)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        fresh = pool.submit(send, node, "POST", f"/compatibility{path}/1", {"schema": '"int"'})
        assert send(node, "POST", "/subjects/meanwhile-value/versions", {"schema": '"long"'}).status == 200
        assert "waits-value" in send(node, "GET", "/subjects").json()
        assert not fresh.done() or fresh.result().status == 422, "ended after its 5 s"
        os.kill(pid, signal.SIGCONT)
        fresh.result(60)
    assert not send(node, "POST", f"/compatibility{path}/1", {"schema": '"int"'}).json()["is_compatible"]
