# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg"
"""kcat, the command-line client, with the old librdkafka a distribution ships. Topics are made by producing to them."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.interop.kafka.checking import (
    SECONDS,
    START_MS,
    Wrong,
    equal,
    fresh,
    in_each_codec,
    main,
    random_bytes,
    true,
    until,
    with_each_mechanism,
)
from tests.interop.kafka.servers import JUDGED, Servers

QUIET = ("-X", "log_level=0", "-X", "broker.address.family=v4")


# -- what the checks are made of ---------------------------------------------------------------------------------


def kcat(address: str, *words: str, given: bytes = b"", seconds: float = SECONDS) -> bytes:
    """Run kcat to its end; what it printed, or its complaint."""
    done = subprocess.run(
        ["kcat", "-b", address, *QUIET, *words], input=given, capture_output=True, timeout=seconds, check=False
    )
    if done.returncode != 0:
        raise Wrong(f"kcat {' '.join(words)} ended with {done.returncode}: {done.stderr.decode()}")
    return done.stdout


def refused(text: str, address: str, *words: str, given: bytes = b"", seconds: float = SECONDS) -> None:
    try:
        answer = kcat(address, *words, given=given, seconds=seconds)
    except Wrong as why:
        true(text in str(why), f"refused otherwise: {why}")
        return
    raise Wrong(f"answered {answer!r:.200} where {text!r} was due")


def settings(**config: Any) -> list[str]:
    return [word for name, value in config.items() for word in ("-X", f"{name.replace('_', '.')}={value}")]


def produce(servers: Servers, topic: str, lines: bytes, *words: str) -> None:
    kcat(servers.plain, "-P", "-t", topic, "-p", "0", *words, given=lines)


def topic_of(servers: Servers, *texts: str) -> str:
    """A topic with these values, one batch; the first of them makes it."""
    topic = fresh("kcat")
    produce(servers, topic, "".join(f"{text}\n" for text in texts).encode())
    return topic


def consume(servers: Servers, topic: str, *words: str, offset: str = "beginning") -> list[dict]:
    """To the end of the partition, as JSON."""
    printed = kcat(servers.plain, "-C", "-t", topic, "-p", "0", "-o", offset, "-e", "-q", "-J", *words)
    return [json.loads(line) for line in printed.splitlines()]


def payloads(messages: list[dict]) -> list[str | None]:
    return [message["payload"] for message in messages]


def metadata(address: str, *words: str) -> dict:
    found: dict = json.loads(kcat(address, "-L", "-J", *words))
    return found


# -- topics ------------------------------------------------------------------------------------------------------


def check_metadata(servers: Servers) -> None:
    topic = topic_of(servers, "a")
    seen = metadata(servers.plain)
    equal([broker["name"] for broker in seen["brokers"]], [servers.plain])
    true(seen["controllerid"] in [broker["id"] for broker in seen["brokers"]], "the controller is a broker")
    (found,) = [each for each in seen["topics"] if each["topic"] == topic]
    equal([part["partition"] for part in found["partitions"]], [0])
    equal(found["partitions"][0]["leader"], seen["brokers"][0]["id"])


def check_metadata_of_one(servers: Servers) -> None:
    topic = topic_of(servers, "a")
    equal([each["topic"] for each in metadata(servers.plain, "-t", topic)["topics"]], [topic])


def check_created_by_producing(servers: Servers) -> None:
    topic = fresh("kcat")
    produce(servers, topic, b"first\n")
    equal(payloads(consume(servers, topic)), ["first"])


# -- producing ---------------------------------------------------------------------------------------------------


def acks(servers: Servers, level: str) -> None:
    topic = topic_of(servers, "a")
    produce(servers, topic, b"b\nc\n", *settings(acks=level))
    wanted = ["a", "b", "c"]
    until(lambda: payloads(consume(servers, topic)) == wanted, "the records", 10)


def codec(servers: Servers, name: str) -> None:
    topic = fresh("kcat")
    lines = [f"line {number} again and again and again" for number in range(500)]
    produce(servers, topic, "".join(f"{line}\n" for line in lines).encode(), "-z", name, *settings(linger_ms=50))
    equal(payloads(consume(servers, topic, *settings(check_crcs="true"))), lines)


def check_idempotence(servers: Servers) -> None:
    topic = fresh("kcat")
    lines = "".join(f"{number}\n" for number in range(1000)).encode()
    produce(servers, topic, lines, *settings(enable_idempotence="true", batch_num_messages=13, linger_ms=0))
    equal(payloads(consume(servers, topic)), [str(number) for number in range(1000)])


def check_keys_and_nulls(servers: Servers) -> None:
    topic = fresh("kcat")
    produce(servers, topic, b"k1:v1\nk2:\n:v3\n", "-K", ":", "-Z")
    found = [(message["key"], message["payload"]) for message in consume(servers, topic)]
    equal(found, [("k1", "v1"), ("k2", None), (None, "v3")])


def check_headers(servers: Servers) -> None:
    topic = fresh("kcat")
    produce(servers, topic, b"x\n", "-H", "one=1", "-H", "two=zwei", "-H", "one=again")
    (message,) = consume(servers, topic)
    equal(message["headers"], ["one", "1", "two", "zwei", "one", "again"])


def check_timestamps(servers: Servers) -> None:
    topic = topic_of(servers, "a")
    (message,) = consume(servers, topic)
    equal(message["tstype"], "create")
    true(message["ts"] > START_MS, "the producer's time")


def check_binary(servers: Servers) -> None:
    """Bytes that are no text, whole, from a file."""
    topic, blob = fresh("kcat"), random_bytes(200_000)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "blob"
        file.write_bytes(blob)
        kcat(servers.plain, "-P", "-t", topic, "-p", "0", str(file))
    printed = kcat(servers.plain, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-D", "")
    true(printed == blob, "the bytes as they were")


def check_unknown_partition_refused(servers: Servers) -> None:
    topic = topic_of(servers, "a")
    refused("Unknown partition", servers.plain, "-P", "-t", topic, "-p", "77", given=b"x\n")


# -- reading -----------------------------------------------------------------------------------------------------


def check_from_mid_batch(servers: Servers) -> None:
    topic = topic_of(servers, *(f"{number}" for number in range(50)))
    found = consume(servers, topic, offset="37")
    equal([(message["offset"], message["payload"]) for message in found], [(n, f"{n}") for n in range(37, 50)])


def check_from_the_end(servers: Servers) -> None:
    topic = topic_of(servers, *"abcde")
    equal(payloads(consume(servers, topic, offset="-2")), ["d", "e"])


def check_count(servers: Servers) -> None:
    topic = topic_of(servers, *"abcde")
    equal(payloads(consume(servers, topic, "-c", "2")), ["a", "b"])


def check_query_offsets(servers: Servers) -> None:
    topic = topic_of(servers, *"abc")
    first, last = consume(servers, topic)[0]["ts"], consume(servers, topic)[-1]["ts"]
    for stamp, wanted in ((-2, 0), (-1, 3), (first, 0), (last + 1, -1)):
        printed = kcat(servers.plain, "-Q", "-t", f"{topic}:0:{stamp}").decode()
        equal(printed.split()[-1], str(wanted), f"offset at {stamp}")


def check_by_time(servers: Servers) -> None:
    topic = topic_of(servers, "old")
    old = consume(servers, topic)[0]["ts"]
    produce(servers, topic, b"new\n")
    new = consume(servers, topic)[1]["ts"]
    equal(payloads(consume(servers, topic, "-o", f"s@{old + 1}", "-o", f"e@{new + 1}")), ["new"])


def check_large_fetch(servers: Servers) -> None:
    """A batch is brought whole, however little was asked for."""
    topic = fresh("kcat")
    produce(servers, topic, b"x" * 700_000 + b"\nsmall\n")
    found = consume(servers, topic, *settings(fetch_message_max_bytes=1000))
    equal([len(message["payload"]) for message in found], [700_000, 5])


def check_out_of_range(servers: Servers) -> None:
    topic = topic_of(servers, "a", "b")
    found = consume(servers, topic, *settings(auto_offset_reset="earliest"), offset="1000")
    equal(payloads(found), ["a", "b"])


# -- groups ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def member(servers: Servers, group: str, topic: str, *words: str) -> Iterator[list[str]]:
    """A consumer of a group that stays; what it printed so far, values and rebalances."""
    command = ["kcat", "-b", servers.plain, *QUIET, "-G", group, *words, "-X", "heartbeat.interval.ms=300"]
    lines: list[str] = []
    with subprocess.Popen(
        [*command, "-X", "auto.offset.reset=earliest", "-u", topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
        reader.start()
        try:
            yield lines
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(SECONDS)
            reader.join(SECONDS)


def check_group(servers: Servers) -> None:
    topic, group = topic_of(servers, "a", "b"), fresh("group")
    with member(servers, group, topic, "-q") as lines:
        until(lambda: [line.strip() for line in lines] == ["a", "b"], "two records")
    # It committed when it left: the next goes on where it stopped.
    produce(servers, topic, b"c\n")
    with member(servers, group, topic, "-q") as lines:
        until(lambda: [line.strip() for line in lines] == ["c"], "the record after the commit")


def check_group_rebalance(servers: Servers) -> None:
    topic, group = topic_of(servers, "a"), fresh("group")
    with member(servers, group, topic) as second:
        until(lambda: any("assigned:" in line for line in second), "the first assignment")
        count = len(second)
        with member(servers, group, topic) as first:
            until(lambda: any("assigned" in line for line in first), "an assignment of the newcomer")
            until(lambda: any("revoked" in line for line in second[count:]), "the revocation")
        until(lambda: f"{topic} [0]" in "".join(second[-1:]) or "Reached end" in "".join(second[-1:]), "it back")


def check_static_member(servers: Servers) -> None:
    topic, group = topic_of(servers, "a"), fresh("group")
    words = ("-q", "-X", "group.instance.id=one")
    with member(servers, group, topic, *words) as lines:
        until(lambda: [line.strip() for line in lines] == ["a"], "the record")
    produce(servers, topic, b"b\n")
    with member(servers, group, topic, *words) as lines:
        until(lambda: [line.strip() for line in lines] == ["b"], "the next record")


def check_cooperative(servers: Servers) -> None:
    topic, group = topic_of(servers, "a"), fresh("group")
    with member(servers, group, topic, "-q", "-X", "partition.assignment.strategy=cooperative-sticky") as lines:
        until(lambda: [line.strip() for line in lines] == ["a"], "the record")


# -- transactions ------------------------------------------------------------------------------------------------


def check_transaction(servers: Servers) -> None:
    topic = topic_of(servers, "before")
    produce(servers, topic, b"t1\nt2\n", *settings(transactional_id=fresh("txn")))
    found = consume(servers, topic, *settings(isolation_level="read_committed"))
    equal([(m["offset"], m["payload"]) for m in found], [(0, "before"), (1, "t1"), (2, "t2")])
    produce(servers, topic, b"after\n")
    equal(consume(servers, topic)[-1]["offset"], 4, "behind the commit marker")


# -- who comes in ------------------------------------------------------------------------------------------------


def sasl(servers: Servers, mechanism: str, password: str) -> list[str]:
    return settings(
        security_protocol="sasl_plaintext",
        sasl_mechanism=mechanism,
        sasl_username=servers.user,
        sasl_password=password,
    )


def round_trip(address: str, words: list[str]) -> None:
    topic = fresh("secured")
    kcat(address, "-P", "-t", topic, "-p", "0", *words, given=b"a\n")
    equal(kcat(address, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", *words), b"a\n")


def let_in(servers: Servers, mechanism: str) -> None:
    round_trip(servers.sasl, sasl(servers, mechanism, servers.password))


def check_scram_with_another_nonce_refused(servers: Servers) -> None:
    """librdkafka 2.0 sends its own nonce twice. RFC 5802 has the server compare it, and Kafka does since CVE-2024-56128."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        words = sasl(servers, mechanism, servers.password)
        text = "librdkafka before 2.6.1" if JUDGED == "braid" else "uthentication fail"
        refused(text, servers.sasl, "-P", "-t", fresh("kcat"), "-p", "0", *words, given=b"a\n")


def check_wrong_password_refused(servers: Servers) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        refused("metadata", servers.sasl, "-L", "-m", "2", *sasl(servers, mechanism, "guessed"))


def check_tls(servers: Servers) -> None:
    round_trip(servers.tls, settings(security_protocol="ssl", ssl_ca_location=servers.ca))


def mutual(servers: Servers) -> list[str]:
    files = settings(ssl_certificate_location=servers.client_cert, ssl_key_location=servers.client_key)
    return settings(security_protocol="ssl", ssl_ca_location=servers.ca) + files


def check_mtls(servers: Servers) -> None:
    round_trip(servers.mtls, mutual(servers))


def check_mtls_without_certificate_refused(servers: Servers) -> None:
    words = settings(security_protocol="ssl", ssl_ca_location=servers.ca)
    refused("metadata", servers.mtls, "-L", "-m", "2", *words)


ACKS = {f"acks_{level}": partial(acks, level=level) for level in ("0", "1", "all")}
TABLE = in_each_codec(codec) | with_each_mechanism(let_in, "PLAIN") | ACKS


if __name__ == "__main__":
    main(globals())
