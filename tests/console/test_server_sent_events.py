"""What pages are sent as it happens, without a browser: tails, downloads, lag, wires, and their limits."""

import base64
import hashlib
import json
from contextlib import closing
from itertools import islice
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.console.asking import Feed, Visitor, ask
from tests.console.waiting import until

import braidlog
from braidlog import kv
from braidlog.console.records.record_tail import LAST_RECORDS, SHOWN_BYTES_MAX
from braidlog.testing.server import ServerProcess

BINARY = bytes(range(256))


def kafka(node: ServerProcess) -> str:
    return f"kafka://127.0.0.1:{node.ports['kafka']}"


@pytest.fixture(scope="module")
def filled(node: ServerProcess) -> ServerProcess:
    with braidlog.connect(kafka(node)) as client:
        client.admin.create_topic("many", 2)
        producer = client.producer()
        for number in range(400):
            producer.send("many", f"value {number}".encode(), partition=number % 2, timestamp_ms=1_000 + number)
        producer.flush()
        client.admin.create_topic("odd")
        producer.send("odd", BINARY, key=b"\xff", headers=(("h", b"\x00"), ("n", None)))
        producer.send("odd", None, key=b"gone")
        producer.send("odd", b"x" * 10_000)
        producer.flush()
    return node


def tail(node: ServerProcess, topic: str, query: str) -> Feed:
    return Feed(f"{node.admin_url}/api/topics/{topic}/tail?{query}")


def past(node: ServerProcess, topic: str, query: str) -> list[tuple[int, int]]:
    """(partition, offset) of the records that are there."""
    with closing(tail(node, topic, f"follow=0&{query}")) as feed:
        found = list(feed)
    assert found[-1][0] == "end"
    assert all(name == "record" for name, _ in found[:-1])
    return [(record["p"], record["o"]) for _, record in found[:-1]]


def test_from_where_and_how_many(filled: ServerProcess) -> None:
    assert past(filled, "many", "from=earliest&partition=0&limit=3") == [(0, 0), (0, 1), (0, 2)]
    assert past(filled, "many", "from=offset&at=198&partition=1") == [(1, 198), (1, 199)]
    assert past(filled, "many", "from=offset&at=999999&partition=1") == []
    assert past(filled, "many", "from=latest") == []
    assert past(filled, "many", "from=time&at=1396") == [(0, 198), (0, 199), (1, 198), (1, 199)]
    assert len(past(filled, "many", "from=last&limit=1000")) == 2 * LAST_RECORDS
    assert past(filled, "many", "from=earliest&limit=1000&contains=VALUE%20399") == [(1, 199)]


@pytest.mark.parametrize(
    ("topic", "query", "status"),
    [("many", "partition=7", 400), ("many", "from=nowhere", 400), ("many", "at=x", 400), ("none", "", 404)],
)
def test_what_cannot_be_understood_is_refused(filled: ServerProcess, topic: str, query: str, status: int) -> None:
    assert ask(f"{filled.admin_url}/api/topics/{topic}/tail?{query}").status == status


def test_bytes_keys_headers_and_what_is_too_long(filled: ServerProcess) -> None:
    with closing(tail(filled, "odd", "follow=0&from=earliest")) as feed:
        odd, gone, long = (record for name, record in feed if name == "record")
    assert base64.b64decode(odd["v"]) == BINARY
    assert base64.b64decode(odd["k"]) == b"\xff"
    assert odd["h"] == [["h", "AA=="], ["n", None]]
    assert (gone["v"], gone["n"]) == (None, 0)
    assert len(base64.b64decode(long["v"])) == SHOWN_BYTES_MAX
    assert long["n"] == 10_000
    whole = ask(f"{filled.admin_url}/api/topics/odd/0/2/value")
    assert whole.body == b"x" * 10_000
    assert whole.headers["content-disposition"].startswith("attachment")
    assert ask(f"{filled.admin_url}/api/topics/odd/0/1/value").status == 404
    assert ask(f"{filled.admin_url}/api/topics/odd/0/99/value").status == 404


def test_values_are_shown_and_found_by_the_schemas_they_name(node: ServerProcess) -> None:
    """As Confluent's serializer writes them; the schema comes after the tail has begun."""
    user = '{"type":"record","name":"Seen","fields":[{"name":"name","type":"string"},{"name":"age","type":"int"}]}'
    with braidlog.connect(kafka(node)) as client, client.producer() as producer:
        client.admin.create_topic("seen")
        with (
            closing(tail(node, "seen", "from=earliest")) as feed,
            SchemaRegistryClient({"url": node.registry_url}) as registry,
        ):
            producer.send_and_wait("seen", b"\0\0\0\x12\x34no schema has this id")
            before = next(feed)[1]
            write, context = AvroSerializer(registry, user), SerializationContext("seen", MessageField.VALUE)
            for name, age in (("ada", 36), ("bob", 41)):
                producer.send_and_wait("seen", write({"name": name, "age": age}, context))
            ada, bob = next(feed)[1], next(feed)[1]
            number = registry.get_latest_version("seen-value").schema_id
    assert "j" not in before
    assert [(each["s"], json.loads(each["j"])) for each in (ada, bob)] == [
        (number, {"name": "ada", "age": 36}),
        (number, {"name": "bob", "age": 41}),
    ]
    found = past(node, "seen", "from=earliest&filter=" + quote("value.age > 40"))
    assert found == [(0, 2)]
    assert past(node, "seen", "from=earliest&contains=ADA") == [(0, 1)]


def test_a_download_has_everything(filled: ServerProcess) -> None:
    answer = ask(f"{filled.admin_url}/api/topics/odd/download?from=earliest")
    assert 'filename="odd.jsonl"' in answer.headers["content-disposition"]
    odd, gone, long = map(json.loads, answer.text.splitlines())
    assert base64.b64decode(odd["value"]["base64"]) == BINARY
    assert odd["headers"] == [{"name": "h", "value": "\x00"}, {"name": "n", "value": None}]
    assert gone["key"] == "gone"
    assert gone["value"] is None
    assert long["value"] == "x" * 10_000
    assert len(ask(f"{filled.admin_url}/api/topics/many/download?from=earliest").text.splitlines()) == 400


def test_a_tail_that_cannot_keep_up_jumps_and_says_how_far(filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        client.admin.create_topic("flood")
        producer = client.producer()
        with closing(tail(filled, "flood", "from=earliest")) as feed:
            producer.send_and_wait("flood", b"first")
            assert next(feed)[0] == "record"
            for _ in range(20_000):
                producer.send("flood", b"x" * 50)
            producer.flush()
            shown, skipped, last = 1, 0, 0
            for name, found in feed:
                if name == "skipped":
                    skipped += found["skipped"]
                else:
                    shown, last = shown + 1, found["o"]
                if last == 20_000:
                    break
    assert skipped > 0
    assert shown + skipped == 20_001


def test_only_so_many_tails_at_a_time_and_their_places_are_free_again(filled: ServerProcess) -> None:
    def opened() -> Feed:
        return tail(filled, "many", "from=last&partition=0")

    feeds = []
    try:
        for _ in range(32):
            feed = opened()
            assert next(feed)[0] == "record"
            feeds.append(feed)
        with closing(opened()) as one_more:
            name, found = next(one_more)
            assert name == "fault"
            assert "limit" in found["text"]
    finally:
        for feed in feeds:
            feed.close()

    def free() -> bool:
        with closing(opened()) as feed:
            return next(feed)[0] == "record"

    until(free)


def test_lag_is_told_in_records_and_seconds(filled: ServerProcess) -> None:
    with braidlog.connect(kafka(filled)) as client:
        consumer = client.consumer()
        consumer.assign("many", [0], group="reader")
        consumer.poll(max_records=150)
        consumer.commit()

    def told() -> Any:
        with closing(Feed(f"{filled.admin_url}/api/groups/reader/lag")) as feed:
            name, found = next(feed)
            assert name == "lag"
            return found if found["lag"] else None

    found = until(told)
    assert found["lag"] == 50
    now = found["t"]
    committed = (now - found["seconds"]) * 1000
    assert abs(committed - (1_000 + 300)) < 2_000, "the age of the first record that is not committed, by its own time"
    page = ask(f"{filled.admin_url}/groups/reader").text
    assert "reader" in page
    assert "<td>classic</td>" in ask(f"{filled.admin_url}/groups").text


def test_the_wire_is_told_without_its_secrets(tmp_path_factory: pytest.TempPathFactory) -> None:
    token = "correct-horse"
    folder = tmp_path_factory.mktemp("wired")
    settings = folder / "braid.toml"
    settings.write_text(f'[auth.tokens]\nalice = "{hashlib.sha256(token.encode()).hexdigest()}"\n')
    with (
        ServerProcess(folder / "data", "--config", str(settings), admin=True) as node,
        kv.connect(f"mayfly://alice:{token}@127.0.0.1:{node.ports['mayfly']}") as store,
    ):
        store.set("a", "1")
        rows = ask(f"{node.admin_url}/connections").text
        number = int(rows.partition('href="/connections/')[2].partition('"')[0])
        with closing(Feed(f"{node.admin_url}/api/connections/{number}/wire")) as feed:
            until(lambda: "watched" in ask(f"{node.admin_url}/connections").text)
            store.set("colour", "green")
            (_, asked), (_, answered) = islice(feed, 2)
        assert (asked["side"], asked["name"], answered["side"]) == ("client", "SET", "server")
        assert json.loads(asked["fields"])["key"] is not None
        assert "colour" in asked["text"]
        assert "63 6F 6C 6F 75 72" in asked["hex"]
        until(lambda: "watched" not in ask(f"{node.admin_url}/connections").text)
        assert store.get("colour") == b"green", "the connection goes on when nobody watches any more"
        assert ask(f"{node.admin_url}/api/connections/999999/wire").status == 404


def test_forms_say_what_they_do_not_understand(filled: ServerProcess) -> None:
    visitor = Visitor(filled.admin_url)
    wrong = [
        {"value": "zz", "value-is-hex": "on"},
        {"value": "x", "partition": "99"},
        {"value": "x", "partition": "minus"},
        {"value": "x", "headers": "no colon"},
    ]
    for fields in wrong:
        answer = visitor.post("/topics/many/records", fields)
        assert answer.status == 200
        assert 'class="fault"' in answer.text, fields
    assert 'class="fault"' in visitor.post("/topics/none/records", {"value": "x"}).text
    assert 'class="fault"' in visitor.act("topic-create", topic="many").text
    assert 'class="fault"' in visitor.act("topic-create", topic="a b").text
    with braidlog.connect(kafka(filled)) as client:
        assert client.admin.describe_topic("many").partitions[0].latest == 200
    assert 'class="done"' in visitor.act("topic-create", topic="typed").text
    stored = visitor.post("/topics/typed/records", {"value": "00ff", "value-is-hex": "on", "key": "k"})
    assert "offset 0" in stored.text
    assert ask(f"{filled.admin_url}/api/topics/typed/0/0/value").body == b"\x00\xff"


def test_pages_of_what_is_not_there(filled: ServerProcess) -> None:
    for path in ("/topics/none", "/groups/none", "/keys/one?hex=00", "/keys/one?hex=x", "/connections/999999"):
        answer = ask(f"{filled.admin_url}{path}")
        assert answer.status == 404, path
        assert "Not found" in answer.text


def test_settings_say_where_they_come_from(filled: ServerProcess) -> None:
    text = ask(f"{filled.admin_url}/settings").text
    assert "<code>data_dir</code>" in text
    assert "flag" in text
    assert "default" in text
