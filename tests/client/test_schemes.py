"""URLs, the table of schemes, and tables that must be total."""

import subprocess
import sys

import pytest
from tests.client.dialects import run

import braidlog
from braidlog import aio
from braidlog.client.drivers import cursus, flux, mlog, rustlog
from braidlog.client.drivers.contract import TITLES, Capabilities
from braidlog.client.drivers.kafka import rules as kafka
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import ConnectError, UnsupportedError
from braidlog.client.schemes import SCHEMES, make_driver, parse_url
from braidlog.wire.cursus.failures import ErrorCode as CursusCode
from braidlog.wire.dialect import Dialect
from braidlog.wire.flux.messages import ErrorCode as FluxCode
from braidlog.wire.kafka.codes import ErrorCode as KafkaCode
from braidlog.wire.mlog.errors import ErrorCode as MlogCode
from braidlog.wire.rustlog.messages import BinaryErrorCode, ErrorCode, Form


def test_a_url_says_who_and_where() -> None:
    target = parse_url("cursus+tls://ada:s%40cret@n1:9001,n2,[::1]:9003?compression=gzip")
    assert target.nodes == (("n1", 9001), ("n2", 9000), ("::1", 9003))
    assert (target.principal, target.token, target.tls) == ("ada", "s@cret", True)
    assert target.options == {"compression": "gzip"}
    assert "cret" not in repr(target)
    assert str(target) == "cursus+tls://ada:…@n1:9001,n2:9000,[::1]:9003"


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://h:1", "unknown scheme"),
        ("rustlog", "unknown scheme"),
        ("rustlog://h:port", "not host"),
        ("rustlog://", "not host"),
        ("rustlog://h:99999", "not host"),
        ("rustlog://h:1/topic", "name topics in calls"),
        ("rustlog://h:1?format=xml", "format=json or format=binary"),
        ("rustlog://h:1?speed=9", "format=json or format=binary"),
        ("mlog://h:1?format=json", "takes no options"),
        ("flux://h:1?format=json", "takes no options"),
        ("cursus://h:1?compression=zip", "zip"),
        ("cursus://h:1?level=9", "level"),
        ("rustlog://h:1?cafile=x", r"rustlog\+tls"),
        ("kafka://h:1?compression=zip", "none, gzip, snappy, lz4, zstd"),
        ("kafka://h:1?isolation=some", "read_uncommitted, read_committed"),
        ("kafka://h:1?sasl=MD5", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("kafka://h:1?session_timeout_ms=-1", "session_timeout_ms=number"),
        ("kafka://h:1?acks=0", "compression, isolation, sasl"),
    ],
)
def test_a_wrong_url_is_told_before_anything_is_dialled(url: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        aio.connect(url)


def test_a_scheme_without_a_driver_is_known_and_not_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "later", Dialect(name="later", title="Later", port=1))
    with pytest.raises(
        UnsupportedError, match=r"later:// is not in this version of the client; it speaks cursus, flux"
    ):
        aio.connect("later://localhost")


@pytest.mark.parametrize("who", ["ada", "ada:two%20words", "a%0Ada:token", f"ada:{'x' * 1024}"])
def test_credentials_are_two_words(who: str) -> None:
    with pytest.raises(ValueError, match="AUTH requires a principal and a token, each one word") as caught:
        aio.connect(f"mlog://{who}@localhost")
    assert "xxx" not in str(caught.value)


def test_a_wrong_setting_names_the_right_ones() -> None:
    with pytest.raises(ValueError, match="retry_timeout"):
        aio.connect("mlog://localhost", retrys=1)
    with pytest.raises(ValueError, match="seconds"):
        aio.connect("mlog://localhost", retry_timeout=-1)


def test_nobody_there() -> None:
    async def test() -> None:
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1 cannot be reached"):
            await aio.connect("mlog://127.0.0.1:1", retry_timeout=0.05)

    run(test)
    with pytest.raises(ConnectError):
        braidlog.connect("mlog://127.0.0.1:1", retry_timeout=0.05)


def test_every_code_of_every_dialect_has_a_meaning() -> None:
    assert set(mlog.REASONS) == set(MlogCode)
    assert set(flux.REASONS) == set(FluxCode)
    assert set(cursus.REASONS) == set(CursusCode)
    assert set(kafka.RULES) == set(KafkaCode)
    assert set(rustlog.REASONS[Form.JSON]) == set(ErrorCode)
    assert set(rustlog.REASONS[Form.BINARY]) == set(BinaryErrorCode)


def test_every_capability_has_its_row() -> None:
    assert list(TITLES) == list(Capabilities.__struct_fields__)


def test_a_driver_shows_where_it_goes() -> None:
    driver = make_driver(parse_url("mlog://h"), Policy())
    assert repr(driver) == "<MlogDriver mlog://h:9094>"


def test_importing_braidlog_stays_light() -> None:
    code = (
        "import sys, braidlog; print([m for m in sys.modules if m in ('asyncio', 'msgspec', 'ssl', 'braidlog.client')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    code = "import braidlog; print(braidlog.aio.connect.__name__, braidlog.connect.__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == [
        "connect",
        "connect",
    ]
