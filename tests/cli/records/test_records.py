"""`braid produce`, `consume`, `tail` against a real node: through every door, with pipes and interrupts."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from tests.cli.braid import COLLECTED, DEBUGGED, DIALECTS, PROGRAM, SECONDS_MAX, UNDONE, Braid, check, fresh
from tests.client.gate import PartitionLocks
from tests.waiting import until

import braidlog
from braidlog.cli import main
from braidlog.client.blocking import Consumer
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.apis import Key


@pytest.fixture
def braid(braid_server_shared: ServerProcess) -> Braid:
    return Braid(braid_server_shared)


@pytest.fixture
def topic(braid: Braid) -> str:
    name = fresh("records")
    braid.ok("topic", "create", name)
    return name


# -- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_through_each_door(dialect: str, braid_server_shared: ServerProcess) -> None:
    braid, name = Braid(braid_server_shared, dialect), fresh(dialect)
    braid.ok("topic", "create", name)
    if dialect == "mlog":
        assert "mlog does not support keys" in braid.fails(3, "produce", name, "-K", ":", stdin="a:one\n")
        assert braid.ok("produce", name, stdin="one\ntwo\n") == ""
    else:
        assert braid.ok("produce", name, "-K", ":", stdin="a:one\nb:two\n") == ""
        assert braid.ok("consume", name, "-f", "%k=%s\\n") == "a=one\nb=two\n"
    assert braid.ok("consume", name) == "one\ntwo\n"
    assert braid.ok("consume", name, "-o", "-1") == "two\n"
    assert braid.ok("consume", name, "-o", "1") == "two\n"
    assert braid.ok("consume", name, "-o", "end") == ""
    assert braid.ok("tail", name, "-o", "beginning", "-n", "2") == "one\ntwo\n"
    told = [json.loads(line) for line in braid.ok("consume", name, "--json").splitlines()]
    for each in told:
        check("record", each)
    assert [(each["offset"], each["value"]) for each in told] == [(0, "one"), (1, "two")]


def test_everything_of_a_record(braid: Braid, topic: str) -> None:
    """Key, headers, time and partition as options; then as JSON, copied whole."""
    braid.ok(
        "produce", topic, "-k", "key", "-H", "a=1", "-H", "b=x=y", "--timestamp", "2026-01-02T03:04:05Z", stdin="v\n"
    )
    expected = f"{topic} 0 0 key v a=1,b=x=y 1767323045000\n"
    assert braid.ok("consume", topic, "-f", "%t %p %o %k %s %h %T\\n") == expected
    copy = fresh("copy")
    braid.ok("topic", "create", copy)
    binary = b'{"value": {"base64": "/wA="}, "key": null, "headers": [{"name": "n"}]}\n{"value": null, "key": "gone"}\n'
    braid.ok("produce", topic, "--json", stdin=binary)
    lines = braid.ok("consume", topic, "--json")
    braid.ok("produce", copy, "--json", stdin=lines)
    assert braid.ok("consume", copy, "--json") == lines.replace(topic, copy)
    assert braid.ok("consume", topic, "-o", "1", "-n", "1", "--output", "hex") == "ff00\n"
    assert braid.ok("consume", topic, "-o", "1", "-n", "1", "--output", "base64") == "/wA=\n"


def test_one_form_of_a_record(tmp_path: Path) -> None:
    """What the console's download and `braid log dump` write is what `consume --json` prints, and `produce --json` takes it."""
    data = tmp_path / "data"
    with ServerProcess(data, admin=True) as server:
        braid = Braid(server)
        for name in ("odd", "copy"):
            braid.ok("topic", "create", name)
        odd = b'{"value": {"base64": "/wA="}, "key": {"base64": "/w=="}, "headers": [{"name": "n"}, {"name":"h", "value":"v"}]}\n'
        braid.ok("produce", "odd", "--json", stdin=odd + b'{"value": null, "key": "gone", "timestamp_ms": 5}\n')
        printed = braid.ok("consume", "odd", "--json")
        with urlopen(f"{server.admin_url}/api/topics/odd/download?from=earliest") as answer:
            downloaded = answer.read()
        assert downloaded.decode() == printed
        assert CliRunner().invoke(main, ["log", "dump", str(data), "odd", "-o", "json"]).output == printed
        braid.ok("produce", "copy", "--json", stdin=downloaded)
        assert braid.ok("consume", "copy", "--json") == printed.replace('"odd"', '"copy"')


def test_bytes_files_and_delimiters(braid: Braid, topic: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"a\nb")
    (tmp_path / "two").write_bytes(b"c\n")
    braid.ok("produce", topic, str(tmp_path / "one"), "-", str(tmp_path / "two"), stdin="stdin\n")
    assert braid.ok("consume", topic) == "a\nb\nstdin\nc\n"
    braid.ok("produce", topic, "--whole", str(tmp_path / "one"))
    braid.ok("produce", topic, "-D", "\\0", stdin=b"x\ny\0z\0")
    braid.ok("produce", topic, "--input", "hex", stdin=b"00ff\n")
    braid.ok("produce", topic, "--input", "base64", "-f", "%k %s", stdin=b"aw== dg==\n")
    braid.ok("produce", topic, "-Z", "-k", "gone", stdin="\n")
    told = [json.loads(line) for line in braid.ok("consume", topic, "-o", "4", "--json").splitlines()]
    assert [(each["key"], each["value"]) for each in told] == [
        (None, "a\nb"),
        (None, "x\ny"),
        (None, "z"),
        (None, {"base64": "AP8="}),
        ("k", "v"),
        ("gone", None),
    ]


def test_partitions_and_times(braid: Braid) -> None:
    name = fresh("parts")
    braid.ok("topic", "create", name, "-p", "3")
    for number, time in ((0, "1000"), (1, "2000"), (1, "3000"), (2, "4000")):
        braid.ok("produce", name, "-p", str(number), "--timestamp", time, stdin=f"{number}@{time}\n")
    assert sorted(braid.ok("consume", name).split()) == ["0@1000", "1@2000", "1@3000", "2@4000"]
    assert braid.ok("consume", name, "-p", "1").split() == ["1@2000", "1@3000"]
    assert sorted(braid.ok("consume", name, "-p", "0", "-p", "2").split()) == ["0@1000", "2@4000"]
    assert sorted(braid.ok("consume", name, "--from", "2000", "--until", "4000").split()) == ["1@2000", "1@3000"]
    assert braid.ok("consume", name, "--from", "1970-01-01T00:00:03.500").split() == ["2@4000"]
    assert braid.ok("consume", name, "--from", "-1m") == ""
    assert sorted(braid.ok("consume", name, "-o", "-1").split()) == ["0@1000", "1@3000", "2@4000"]
    assert len(braid.ok("consume", name, "-n", "2").split()) == 2


def test_as_a_member_of_a_group(braid: Braid, topic: str) -> None:
    group = fresh("readers")
    braid.ok("produce", topic, stdin="one\ntwo\nthree\n")
    assert braid.ok("consume", topic, "--group", group, "-n", "2") == "one\ntwo\n"
    assert braid.ok("consume", topic, "--group", group) == "three\n"
    assert braid.ok("consume", topic, "--group", group) == ""


def test_many_lines(braid: Braid, topic: str) -> None:
    """More than a chunk, and a line that is longer than one."""
    lines = [b"%d" % number for number in range(20_000)] + [b"x" * 300_000, b"last"]
    braid.ok("produce", topic, stdin=b"\n".join(lines))
    with braid.start("consume", topic) as reader:
        out, said = reader.communicate(timeout=SECONDS_MAX)
    assert (reader.returncode, said) == (0, b"")
    assert out.splitlines() == lines


def test_the_end_of_a_log_with_transactions(braid: Braid, braid_server_shared: ServerProcess, topic: str) -> None:
    """What stands last is no record; `consume` ends all the same."""
    from confluent_kafka import Producer  # noqa: PLC0415 - this one test writes transactions

    servers = f"127.0.0.1:{braid_server_shared.ports['kafka']}"
    writer = Producer({"bootstrap.servers": servers, "transactional.id": fresh("tx")})
    writer.init_transactions(SECONDS_MAX)
    writer.begin_transaction()
    writer.produce(topic, b"in a transaction")
    writer.commit_transaction(SECONDS_MAX)
    with braid.start("consume", topic) as reader:
        try:
            out, said = reader.communicate(timeout=SECONDS_MAX)
        finally:
            reader.kill()
    assert (reader.returncode, out, said) == (0, b"in a transaction\n", b"")


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_line_that_is_wrong_ends_it(braid: Braid, topic: str) -> None:
    """What was before it is delivered; the line is named."""
    said = braid.fails(
        2, "produce", topic, "--json", stdin=b'{"value": "one"}\n{"value": "two"}\nnonsense\n{"value": "never"}\n'
    )
    assert "2 records acknowledged" in said
    assert "standard input, line 3: not a record in JSON" in said
    assert braid.ok("consume", topic) == "one\ntwo\n"
    assert "line 1: the line does not match the format" in braid.fails(2, "produce", topic, "-K", ":", stdin="none\n")
    assert "--json reads records in JSON" in braid.fails(2, "produce", topic, "-f", "json", stdin="none\n")


def test_an_offset_behind_the_end_is_said_to_be(braid: Braid, topic: str) -> None:
    braid.ok("produce", topic, stdin="one\n")
    assert f"{topic} ends at offset 1: no record at 99 yet" in braid("consume", topic, "-o", "99").stderr
    assert braid("consume", topic, "-o", "1").stderr == ""


def test_missing_topics_and_files(braid: Braid, topic: str, tmp_path: Path) -> None:
    for command in ("consume", "tail", "produce"):
        assert "UNKNOWN_TOPIC_OR_PARTITION" in braid.fails(3, command, fresh("absent"), stdin="x\n")
    said = braid.fails(3, "produce", topic, str(tmp_path / "absent"))
    assert said.splitlines() == [
        "braid: 0 records acknowledged",
        f"braid: {tmp_path / 'absent'}: No such file or directory",
    ]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_into_a_missing_topic_is_no_success_and_create_makes_it(
    dialect: str, braid_server_shared: ServerProcess
) -> None:
    braid, name = Braid(braid_server_shared, dialect), fresh("made")
    assert f"no topic '{name}'; create it with `braid topic create {name}`" in braid.fails(3, "produce", name)
    for _ in range(2):
        braid.ok("produce", name, "--create", stdin="hello\n")
    assert braid.ok("consume", name) == "hello\nhello\n"


def test_a_full_disk_is_tried_for_as_long_as_was_said_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("braidlog.cli.records.produce.RETRIES_LOOK_SECONDS", 0.05)
    with ServerProcess(tmp_path / "data", "--set", f"disk_reserve_bytes={1 << 60}") as server:
        braid = Braid(server)
        braid.ok("topic", "create", "t")
        until(lambda: "fewer than disk_reserve_bytes" in server.errors(), "the disk is found full")
        said = braid.fails(3, "produce", "t", "--timeout", "3", stdin="one\n").splitlines()
    full = "t/0: this node's disk is full; retry after space was freed (KAFKA_STORAGE_ERROR)"
    assert said == [f"braid: trying for 3 s: {full}", "braid: 0 of 1 record acknowledged", f"braid: {full}"]


def test_a_damaged_partition_is_tried_for_as_long_as_was_said_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("braidlog.cli.records.produce.RETRIES_LOOK_SECONDS", 0.05)
    with ServerProcess(tmp_path / "data") as server:
        braid = Braid(server)
        braid.ok("topic", "create", "t")
        braid.ok("produce", "t", stdin="x" * 100 + "\n")
        server.kill()
        (segment,) = [path for path in tmp_path.glob("data/topics/*/0000/*.log") if b"x" * 100 in path.read_bytes()]
        content = bytearray(segment.read_bytes())
        content[content.index(b"x" * 100)] ^= 1
        segment.write_bytes(content)
        server.start()
        said = braid.fails(3, "produce", "t", "--timeout", "3", stdin="one\n").splitlines()
    why = "t/0: this node cannot read or write its files; see its log, and run `braid doctor` (KAFKA_STORAGE_ERROR)"
    assert said == [f"braid: trying for 3 s: {why}", "braid: 0 of 1 record acknowledged", f"braid: {why}"]


def test_what_a_dialect_cannot(braid_server_shared: ServerProcess) -> None:
    braid, name = Braid(braid_server_shared, "mlog"), fresh("mlog")
    braid.ok("topic", "create", name)
    braid.ok("produce", name, stdin="x\n")
    for args in (["--from", "-1m"], ["--until", "now"], ["--group", "g"]):
        said = braid.fails(3, "consume", name, *args)
        assert said.startswith("braid: mlog does not support ")
        assert "supported by: " in said
    assert "mlog does not support timestamps chosen by writers" in braid.fails(
        3, "produce", name, "--timestamp", "1", stdin="x\n"
    )


@pytest.mark.parametrize(
    "args",
    [
        ["consume"],
        ["consume", "t", "-o", "middle"],
        ["consume", "t", "-n", "0"],
        ["consume", "t", "--from", "yesterday"],
        ["consume", "t", "-f", "%y"],
        ["consume", "t", "-f", "%s", "--json"],
        ["consume", "t", "--output", "xml"],
        ["produce"],
        ["produce", "t", "-H", "novalue"],
        ["produce", "t", "-K", ":", "-f", "%s"],
        ["produce", "t", "-K", ":", "--json"],
        ["produce", "t", "-f", "%o"],
        ["produce", "t", "-D", ""],
        ["produce", "t", "--timestamp", "soon"],
        ["produce", "t", "-p", "-1"],
        ["produce", "t", "--token-file", "/absent"],
    ],
    ids=" ".join,
)
def test_wrong_usage(braid: Braid, args: list[str]) -> None:
    assert "Usage:" in braid.fails(2, *args)


def test_a_group_and_offsets(braid: Braid, topic: str) -> None:
    assert "--group and --partition exclude each other" in braid.fails(2, "consume", topic, "--group", "g", "-p", "0")
    assert "starts at its committed offsets" in braid.fails(2, "consume", topic, "--group", "g", "-o", "5")


# -- pipes and interrupts ----------------------------------------------------------------------------------------------


def test_tail_follows_and_ends_with_head(braid: Braid, topic: str) -> None:
    """The reader has enough: no error, and not only when the next record comes."""
    braid.ok("produce", topic, stdin="one\ntwo\nthree\n")
    command = " ".join([*PROGRAM, "tail", topic, "-o", "beginning"])
    done = subprocess.run(
        ["bash", "-c", f'{command} | head -n 1; echo "${{PIPESTATUS[0]}}"'],
        env={**os.environ, **braid.environment},
        capture_output=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"one\n0\n", b"")


def test_a_pipe_that_breaks_while_it_is_written_to(braid: Braid, topic: str) -> None:
    braid.ok("produce", topic, stdin=b"\n".join(b"%d" % number * 100 for number in range(5000)))
    command = " ".join([*PROGRAM, "consume", topic])
    done = subprocess.run(
        ["bash", "-c", f'{command} | head -c 10; echo "${{PIPESTATUS[0]}}"'],
        env={**os.environ, **braid.environment},
        capture_output=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    assert done.stderr == b""
    assert done.stdout.endswith(b"0\n")


def test_tail_is_interrupted(braid: Braid, topic: str) -> None:
    with braid.start("tail", topic, "-o", "beginning") as follower:
        assert follower.stdout is not None
        for word in ("one", "two"):
            braid.ok("produce", topic, stdin=f"{word}\n")
            assert follower.stdout.readline() == f"{word}\n".encode()
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate(timeout=SECONDS_MAX)
    assert (follower.returncode, said) == (130, b"braid: interrupted\n")


def test_produce_is_interrupted(braid: Braid, topic: str) -> None:
    """What was read is delivered and counted; a line that has no end yet is none."""
    with braid.start("produce", topic) as writer, braidlog.connect(braid.url) as client:
        assert writer.stdin is not None
        writer.stdin.write(b"one\ntwo\nhalf")
        writer.stdin.flush()
        with client.consumer() as consumer:
            consumer.assign(topic)
            found = Found(consumer)
            until(lambda: found.after_another_look() == [b"one", b"two"], "both lines are there")
        writer.send_signal(signal.SIGINT)
        assert writer.wait(SECONDS_MAX) == 130
        assert writer.stderr is not None
        *_, last = writer.stderr.read().splitlines()  # before it, maybe, that an acknowledgement was on the way
        assert last == b"braid: interrupted; 2 records acknowledged"
    assert braid.ok("consume", topic) == "one\ntwo\n"


def test_produce_without_answers_gives_up_at_the_second_interrupt(tmp_path: Path) -> None:
    """The second record is stored and its answer never comes: it is not said to be acknowledged. One batch is on its way at a
    time: that it was sent says that the first was acknowledged.
    """
    with PartitionLocks() as gate, ServerProcess(tmp_path / "data", *gate.settings) as server:
        gate.server_port = server.ports["kafka"]
        braid = Braid(url=f"kafka://127.0.0.1:{gate.port}")
        braid.ok("topic", "create", "t")
        answer = gate.stop_at(Key.PRODUCE, nth=2, side="answer")
        with braid.start("produce", "t", "--timeout", "600") as writer:
            assert writer.stdin is not None
            assert writer.stderr is not None
            writer.stdin.write(b"one\n")
            writer.stdin.flush()
            until(lambda: braid.ok("consume", "t") == "one\n", "the first record is there")
            writer.stdin.write(b"two\n")
            writer.stdin.flush()
            answer.wait()
            writer.send_signal(signal.SIGINT)
            assert writer.stderr.readline() == b"braid: 1 record in flight; interrupt again to give up\n"
            writer.send_signal(signal.SIGINT)
            assert writer.wait(SECONDS_MAX) == 130
            assert writer.stderr.read() == b"braid: gave up; 1 of 2 records acknowledged\n"


@pytest.mark.parametrize(("dialect", "verb"), [("kafka", "produce"), ("cursus", "consume"), ("mlog", "tail")])
def test_an_interrupt_leaves_no_work_undone(
    braid_server_shared: ServerProcess, topic: str, dialect: str, verb: str
) -> None:
    """Python itself says so, if it is asked to: of a task that nobody ended, a coroutine that nobody waited for."""
    braid = Braid(braid_server_shared, dialect)
    lines = 1 if verb == "tail" else 1000  # it waits for more to come, or for someone to read what no pipe has room for
    braid.ok("produce", topic, stdin=b"".join(b"%0999d\n" % number for number in range(lines)))
    braid.environment |= DEBUGGED
    braid.program = COLLECTED
    words = [verb, topic, *(["-o", "beginning"] if verb == "tail" else [])]
    with braid.start(*words) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if verb == "produce":
            process.stdin.write(b"last\nhalf")
            process.stdin.flush()
            until(lambda: braid.ok("consume", topic).endswith("last\n"), "its record is there")
        else:
            assert process.stdout.readline() == b"%0999d\n" % 0
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 130, said
    assert b"braid: interrupted" in said
    assert not re.search(UNDONE, said), said.decode()


class Found:
    """All that a consumer was handed so far."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._values: list[bytes | None] = []

    def after_another_look(self) -> list[bytes | None]:
        self._values += [record.value for record in self._consumer.poll(timeout=0.2)]
        return self._values
