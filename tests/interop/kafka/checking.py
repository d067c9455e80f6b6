"""Checks of a foreign client as a script, and as a process that pytest asks for one check after the other.

    python -m tests.interop.kafka.check_confluent plain=127.0.0.1:9092 ca=… [check …]     one line per check: PASS or FAIL
    python -m tests.interop.kafka.check_confluent plain=127.0.0.1:9092 ca=… -             names on stdin, JSON on stdout

A process of its own: a client that crashes takes its check with it, not the tests.
"""

import asyncio
import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from tests.interop.kafka.servers import Servers

SECONDS = 40
START_MS = 1_700_000_000_123
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# (key, value, headers, timestamp): nulls, empties, several headers of one name, bytes that are no text, times that go back.
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [
    (b"user1", b"created", [("h", b"1")], START_MS),
    (None, b"x", [], START_MS + 2),
    (b"user2", None, [("trace", b"\x00\xff"), ("none", None), ("trace", b"again"), ("\u00e9", b"e")], START_MS - 5_000),
    (b"", b"", [], START_MS + 86_400_000),
    (b"k" * 64, b"v" * 8192, [], START_MS + 3),
]

Check = Callable[[Servers], Coroutine[Any, Any, None] | None]
T = TypeVar("T")


class Wrong(AssertionError):  # noqa: N818 - a verdict
    """The broker did something else than Kafka does."""


def equal(found: object, wanted: object, what: str = "") -> None:
    if found != wanted:
        raise Wrong(f"{what + ': ' if what else ''}found {found!r:.2000}, wanted {wanted!r:.2000}")


def true(condition: object, what: str) -> None:
    if not condition:
        raise Wrong(what)


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def until(probe: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """The first answer of the probe that is not false; the probe itself waits a little, or is cheap."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < deadline:
        if answer := probe():
            return answer
        pause.wait(0.02)
    raise Wrong(f"waited {seconds} s for {what}")


async def until_async(probe: Callable[[], Awaitable[T | None]], what: str, seconds: float = SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := await probe():
            return answer
        await asyncio.sleep(0.02)
    raise Wrong(f"waited {seconds} s for {what}")


def random_bytes(size: int) -> bytes:
    """No codec makes these smaller."""
    return os.urandom(size)


def named(module: dict[str, Any]) -> dict[str, Check]:
    """The checks of a module: those of its `TABLE`, then its functions in the order they stand there."""
    functions = {name.removeprefix("check_"): each for name, each in module.items() if name.startswith("check_")}
    return {**module["TABLE"], **functions}


def in_each_codec(check: Callable[..., Any]) -> dict[str, Check]:
    return {f"codec_{name}": partial(check, name=name) for name in CODECS}


def with_each_mechanism(check: Callable[..., Any], *names: str) -> dict[str, Check]:
    """Let in by the right password: `scram_sha_256` for SCRAM-SHA-256, `sasl_plain` for PLAIN."""
    words = {"PLAIN": "sasl_plain", "SCRAM-SHA-256": "scram_sha_256", "SCRAM-SHA-512": "scram_sha_512"}
    return {words[name]: partial(check, mechanism=name) for name in names or words}


def values(*texts: str) -> list[Any]:
    """Records of these texts, to produce."""
    return [(None, text.encode(), [], START_MS + number) for number, text in enumerate(texts)]


def sasl_of_python_clients(servers: Servers, mechanism: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": servers.sasl,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": servers.user,
        "sasl_plain_password": password,
    }


def judge(name: str, check: Check, servers: Servers) -> dict[str, Any]:
    start = time.monotonic()
    why = ""
    try:
        answer = check(servers)
        if answer is not None:
            asyncio.run(asyncio.wait_for(answer, 2 * SECONDS))
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the finding
        why = _shown(error)
    return {"check": name, "ok": not why, "why": why, "seconds": round(time.monotonic() - start, 2)}


def _shown(error: BaseException) -> str:
    """The error and the lines of the check it came through; what lies inside the client is of no help."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "/interop/kafka/check_" in each.filename]
    return "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])


def main(module: dict[str, Any]) -> None:
    checks = named(module)
    servers = Servers.of([word for word in sys.argv[1:] if "=" in word])
    wanted: Sequence[str] = [word for word in sys.argv[1:] if "=" not in word]
    if list(wanted) == ["-"]:
        for line in sys.stdin:
            answer = judge(line.strip(), checks[line.strip()], servers)
            print(json.dumps(answer), flush=True)
        _leave(0)
    failed = 0
    for name in wanted or checks:
        answer = judge(name, checks[name], servers)
        failed += not answer["ok"]
        print("PASS" if answer["ok"] else "FAIL", f"{answer['seconds']:5.1f} s", name, flush=True)
        print(answer["why"], end="", flush=True)
    print(f"{len(wanted or checks) - failed} passed, {failed} failed")
    _leave(bool(failed))


def _leave(code: int) -> None:
    """At once: a client that a failed check left open must not hold the process back."""
    sys.stdout.flush()
    os._exit(code)
