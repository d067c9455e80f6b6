"""Data folders as a version of braidlog wrote them, kept for all later versions to open.

    python -m tests.samples.folders          once for each release: writes tests/samples/<version>/, never over one that is there

A sample is `<name>.tar.xz` and, beside it, `<name>.json`: what the version that wrote it told of its content.

| sample | what | how it ended |
|---|---|---|
| stopped | topics, groups, transactions, users, rules, quotas, keys with a snapshot, schemas: what `fill` says | SIGTERM |
| killed | the same | SIGKILL: logs without checkpoints, the store's log behind its snapshot |
| member | node 1 of three: replicas, shards of coordinators, slots of keys; without etcd | SIGTERM |

Knows: what goes into a sample and how it is asked for. Refuses to know: bytes. What is asked is what users see: records, offsets,
keys. Nothing in it grows old: nothing is let go for its age while a sample is opened with `SETTINGS`.
"""

import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import click
from tests.cli.braid import Braid
from tests.server.etcd.members import members

import braidlog
import braidlog.kv
from braidlog.storage.files import OsDisk
from braidlog.testing.cluster_process import ClusterProcess
from braidlog.testing.server import ServerProcess
from braidlog.tools.layout import Layout

HERE = Path(__file__).parent
SETTINGS = f"""
[groups]
offsets_retention_ms = {2**42}
[[auth.rules]]
principal = "*"
operations = ["*"]
"""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def node_over(folder: Path) -> ServerProcess:
    settings = folder.with_suffix(".toml")
    settings.write_text(SETTINGS, encoding="utf-8")
    return ServerProcess(folder, "--config", str(settings), admin=True)


def fill(node: ServerProcess, folder: Path) -> None:
    braid = Braid(node)
    for codec in CODECS:
        lines = "".join(f"{key}:{codec} {key}\n" for key in range(5))
        words = ("-K", ":", "--compression", codec, "-H", "source=sample", "--timestamp", "2026-01-02T03:04:05Z")
        braid.ok("produce", f"codec-{codec}", "--create", *words, stdin=lines)
    braid.ok("topic", "create", "segments", "-p", "2", "-c", "segment.bytes=4096")
    for part in range(4):
        braid.ok("produce", "segments", "-K", ":", stdin="".join(f"{n}:{part} {n} {'.' * 90}\n" for n in range(40)))
    braid.ok("topic", "create", "latest", "-c", "segment.bytes=4096", "-c", "cleanup.policy=compact")
    for part in range(8):
        braid.ok("produce", "latest", "-K", ":", stdin="".join(f"{n}:{part} {n} {'.' * 90}\n" for n in range(10)))
    braid.ok("topic", "create", "paid")
    with braidlog.connect(braid.url) as client, client.producer(transactional_id="billing-1") as producer:
        for number in range(3):
            with producer.transaction() as transaction:
                producer.send("paid", b"%d" % number)
                if number == 1:
                    transaction.abort()
    braid.ok("consume", "segments", "--group", "readers", "-n", "50")
    braid.ok("user", "create", "ann", stdin="correct horse battery staple\n")
    braid.ok("rule", "add", "ann", "read", "--topic", "segments", "--group", "ann-*")
    braid.ok("quota", "set", "--user", "ann", "--append-bytes", "1000000")
    (folder / "order.avsc").write_text(AVRO, encoding="utf-8")
    braid.ok("schema", "register", "orders-value", str(folder / "order.avsc"), "--url", node.registry_url)
    store_url = f"mayfly://127.0.0.1:{node.ports['mayfly']}"
    with braidlog.kv.connect(store_url) as store:
        store.set("greeting", "hello")
        store.incr("visits", 11)
        store.rpush("queue", "first", "second", "third")
        store.hset("ada", {"born": "1815", "field": "mathematics"})
        store.set("forgotten", "soon")
    braid.ok("kv", "snapshot", "--url", store_url)
    with braidlog.kv.connect(store_url) as store:
        store.delete("forgotten")
        store.set("after", "the snapshot")
        store.lpop("queue")


def told(node: ServerProcess) -> dict[str, Any]:
    """What a node says that it has, in words that outlive versions."""
    braid = Braid(node)
    topics = [f"codec-{codec}" for codec in CODECS] + ["segments", "paid"]
    words = ("--json", "-X", "isolation=read_committed")
    records = {topic: _records(braid.ok("consume", topic, *words)) for topic in topics}
    latest = {each[2]: each[3] for each in _records(braid.ok("consume", "latest", *words))}
    with braidlog.connect(braid.url) as client:
        offsets = {f"{topic}/{number}": at for (topic, number), at in client.admin.group_offsets("readers").items()}
        users = sorted(f"{each.user} {each.mechanism} {each.iterations}" for each in client.admin.list_users())
        rules = sorted(
            f"{each.principal} {each.operation} {each.resource} {each.name}"
            for each in client.admin.list_rules()
            if each.principal == "ann"
        )
        quotas = [[each.user, each.append_bytes_per_second] for each in client.admin.list_quotas()]
    with braidlog.kv.connect(f"mayfly://127.0.0.1:{node.ports['mayfly']}") as store:
        keys = {
            "greeting": _text(store.get("greeting")),
            "forgotten": _text(store.get("forgotten")),
            "after": _text(store.get("after")),
            "visits": _text(store.get("visits")),
            "queue": [_text(each) for each in store.lrange("queue")],
            "ada": {_text(name): _text(value) for name, value in store.hgetall("ada").items()},
        }
    schema = json.loads(braid.ok("schema", "get", "orders-value", "--url", node.registry_url, "-o", "json"))
    return {
        "records": records,
        "latest": latest,
        "offsets": offsets,
        "users": users,
        "rules": rules,
        "quotas": quotas,
        "keys": keys,
        "schema": json.loads(schema["schema"]),
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _records(lines: str) -> list[list[Any]]:
    found = [json.loads(line) for line in lines.splitlines()]
    return sorted(
        [each["partition"], each["offset"], each["key"], each["value"], each.get("headers"), each["timestamp_ms"]]
        for each in found
    )


def told_offline(folder: Path) -> dict[str, Any]:
    """Of a member of a cluster, which does not start without its etcd: what is in its files."""
    counts: dict[str, dict[str, int]] = {}
    for topic in Layout(OsDisk(), str(folder)).topics:
        for number in topic.meta.held:
            dumped = Braid().ok("log", "dump", str(folder), topic.meta.name, "-p", str(number), "-o", "json")
            counts.setdefault(topic.meta.name, {})[str(number)] = len(dumped.splitlines())
    return {"records": counts}


def pack(folder: Path, out: Path, name: str, content: dict[str, Any]) -> None:
    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if member.name.endswith("/LOCK") or "/etcd/" in f"{member.name}/" else member

    with tarfile.open(out / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(folder, name, filter=kept)
    (out / f"{name}.json").write_text(json.dumps(content, sort_keys=True) + "\n", encoding="utf-8")


def unpack(archive: Path, out: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(out, filter="data")
    return out / archive.name.partition(".")[0]


def make_member(folder: Path, out: Path) -> None:
    with (
        members(folder, 1) as (etcd,),
        ClusterProcess(folder, etcd.url) as cluster,
    ):
        braid = Braid(url=cluster.url("kafka"))
        braid.ok("topic", "create", "orders", "-p", "3")
        braid.ok("produce", "orders", "-K", ":", stdin="".join(f"{n}:{n}\n" for n in range(100)))
        braid.ok("consume", "orders", "--group", "readers")
        with braidlog.kv.connect(cluster.url("mayfly")) as store:
            for number in range(50):
                store.set(f"key-{number}", str(number))
    pack(folder / "node-1", out, "member", told_offline(folder / "node-1"))


def main() -> None:
    out = HERE / braidlog.__version__
    if out.exists():
        raise SystemExit(
            f"{out} is there: samples of a version are written once. Of what comes after it: raise the version first"
        )
    out.mkdir()
    for name in ("stopped", "killed"):
        with tempfile.TemporaryDirectory() as folder:
            with node_over(Path(folder) / name) as node:
                fill(node, Path(folder))
                content = told(node)
                if name == "killed":
                    node.kill()
            pack(Path(folder) / name, out, name, content)
    with tempfile.TemporaryDirectory() as folder:
        make_member(Path(folder), out)
    for made in sorted(out.iterdir()):
        click.echo(f"{made.relative_to(HERE)}: {made.stat().st_size} bytes")


if __name__ == "__main__":
    main()
