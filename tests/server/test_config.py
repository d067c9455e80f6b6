"""Layers, origins, mistakes with a hint, and no exposure by accident."""

import re
from pathlib import Path

import pytest

from braidlog.model.errors import BrokerError, Reason
from braidlog.security.authorization import Authorize
from braidlog.security.quotas import Rates
from braidlog.server.config import LoadedConfig, ServerConfig, check_exposure, load_config
from braidlog.wire.dialect import dialects

EXPOSED = "[cluster]\netcd = 'embedded'\n"
PEERS = "[cluster.peers]\nca = 'a'\ncert = 'b'\nkey = 'c'\n"


def load(text: str = "", environment: dict[str, str] | None = None, **flags: object) -> LoadedConfig:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    return load_config(("braid.toml", text), environment or {}, dotted)


def refused(*args: object, **more: object) -> str:
    with pytest.raises(BrokerError) as caught:
        load(*args, **more)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.INVALID_SETTING
    return str(caught.value)


def test_defaults() -> None:
    loaded = load_config(None, {"PATH": "/bin", "BRAIDED": "no"}, {})
    assert loaded.config == ServerConfig()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.origins["listeners.cursus.port"] == "default"


def test_later_layers_win_and_say_where_they_came_from() -> None:
    text = """
    data_dir = "from file"
    node = "file"
    drain_seconds = 3
    [listeners.cursus]
    port = 1
    """
    environment = {"BRAID_NODE": "env", "BRAID_DRAIN_SECONDS": "4.5", "BRAID_LISTENERS__FLUX__PORT": "7"}
    loaded = load(text, environment, drain_seconds=5)
    config = loaded.config
    assert (config.data_dir, config.node, config.drain_seconds) == ("from file", "env", 5.0)
    assert (config.listeners.cursus.port, config.listeners.flux.port) == (1, 7)
    assert loaded.origins["data_dir"] == "file braid.toml"
    assert loaded.origins["node"] == "environment BRAID_NODE"
    assert loaded.origins["drain_seconds"] == "flag"
    assert loaded.origins["listeners.flux.port"] == "environment BRAID_LISTENERS__FLUX__PORT"
    assert loaded.origins["listeners.mlog.port"] == "default"


@pytest.mark.parametrize("name", dialects())
def test_a_listener_keeps_its_port_whatever_else_of_it_is_set(name: str) -> None:
    own = {f"listeners__{name}__advertised_host": "log.example"}
    found = (
        load(f'[listeners.{name}]\nhost = "::1"'),
        load("", {f"BRAID_LISTENERS__{name.upper()}__HOST": "::1"}),
        load("", None, **own),
    )
    assert {getattr(each.config.listeners, name).port for each in found} == {dialects()[name].port}


def test_free_tables_and_lists() -> None:
    text = f"""
    [auth.tokens]
    alice = "{"0" * 64}"
    "a.b" = "{"1" * 64}"
    [[auth.rules]]
    principal = "alice"
    operations = ["read"]
    topic = "orders*"
    [quotas]
    append_bytes_per_second = 1000
    [quotas.principals.bulk]
    fetch_bytes_per_second = 5
    [topics]
    flush = "interval"
    """
    config = load(text).config
    assert set(config.auth.tokens) == {"alice", "a.b"}
    assert config.auth.rules[0].topic == "orders*"
    assert config.topics.flush == "interval"
    assert config.quotas.default() == Rates(append_bytes_per_second=1000)
    assert config.quotas.principals == {"bulk": Rates(fetch_bytes_per_second=5)}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("data_dri = 'x'", "did you mean 'data_dir'?"),
        ("[listeners.cursus]\nprot = 1", "did you mean 'listeners.cursus.port'?"),
        ("[limits]\nin_flight = 3", "did you mean 'limits.in_flight_max'?"),
        ("[listener.flux]\nport = 3", "did you mean 'listeners.flux.port'?"),
        ("zzzzzzzz = 1", "there is no setting 'zzzzzzzz'"),
        ("listeners = 3", "there is no setting 'listeners'"),
        ("[data_dir]\nx = 1", "there is no setting 'data_dir.x'"),
    ],
)
def test_unknown_names(text: str, hint: str) -> None:
    message = refused(text)
    assert hint in message
    assert "file braid.toml" in message


def test_unknown_names_in_the_environment_and_in_flags() -> None:
    assert "BRAID_DATADIR" in refused("", {"BRAID_DATADIR": "x"})
    assert "flag" in refused("", {}, datadir="x")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("drain_seconds = 'soon'", "drain_seconds"),
        ("[listeners.mlog]\nport = 'x'", "listeners.mlog.port"),
        ("[listeners.mlog]\nport = 65536", "port must be 0 to 65535, not 65536"),
        ("[listeners.mlog]\nport = -1", "port must be 0 to 65535"),
        ("[limits]\nin_flight_max = 0", "in_flight_max must be 1 to"),
        ("[limits]\nidle_seconds_max = 0", "idle_seconds_max must be"),
        ("[topics]\nretention_ms = -7", "retention_ms must be"),
        ("[topics]\nflush = 'never'", "topics.flush"),
        ("[auth.tokens]\n__console = '00'", "give the user another name"),
        ("[auth.users]\n__console = 'x'", "give the user another name"),
        ("[quotas]\nappend_bytes_per_second = 0", "at least 1 byte per second"),
        ("[quotas.principals.x]\nfetch_bytes_per_second = 0", "at least 1 byte per second"),
        ("[listeners.mlog.tls]\nclient_ca = 'ca.pem'", "need a tls.cert"),
        ("[cluster]\netcd = ['ftp://x']", "is not an etcd address such as http://10.0.0.1:2379"),
        ("[cluster]\netcd = 'http://a'\nca = 'ca.pem'", "require members with https:// URLs"),
        ("[cluster]\netcd = 'https://a'\nkey = 'key.pem'", "key requires cert"),
        ("[cluster]\nuser = 'a'\ntoken = 't'", "set either token, or user and password"),
        ("[cluster]\nprefix = '/'", "prefix must not be empty"),
        ("[cluster]\npeer_port = 2379", "must be different ports"),
        (f"{EXPOSED}[cluster.peers]\nhost = '10.0.0.1'", "peer ports on 10.0.0.1 need certificates"),
        (f"{EXPOSED}{PEERS}host = 'one.example'", "set cluster.peers.host to one, and advertised_host to one.example"),
        (f"{EXPOSED}{PEERS}host = '0.0.0.0'", "set cluster.peers.advertised_host"),
        (f"{EXPOSED}initial_cluster = '1=http://10.0.0.1:2380'\n{PEERS}host = '10.0.0.1'", "1=https://10.0.0.1:2380"),
        (f"{EXPOSED}initial_cluster = '10.0.0.1'\n{PEERS}host = '10.0.0.1'", "'10.0.0.1' must be node=host"),
        ("x = = 1", "braid.toml"),
    ],
)
def test_bad_values(text: str, part: str) -> None:
    assert part in refused(text)


def test_embedded_members_are_where_their_nodes_are() -> None:
    names = "initial_cluster = '1=10.0.0.1, 2=10.0.0.2,3=https://[fd00::3]:23'\n"
    there = load(f"{EXPOSED}{names}{PEERS}host = '0.0.0.0'\nadvertised_host = '10.0.0.2'").config.cluster
    assert there.endpoints == [f"https://{host}:2379" for host in ("10.0.0.2", "10.0.0.1", "[fd00::3]")]
    flags = there.member("2").flags()
    assert flags["initial-cluster"] == "1=https://10.0.0.1:2380,2=https://10.0.0.2:2380,3=https://[fd00::3]:23"
    assert (flags["listen-peer-urls"], flags["listen-client-urls"]) == ("https://0.0.0.0:2380", "https://0.0.0.0:2379")
    assert flags["initial-advertise-peer-urls"] == "https://10.0.0.2:2380"
    assert flags["peer-client-cert-auth"] == flags["client-cert-auth"] == "true"
    with pytest.raises(BrokerError, match="but not this node, 4: add it"):
        there.member("4")
    alone = load(EXPOSED).config.cluster.member("1").flags()
    assert alone["listen-client-urls"] == "http://127.0.0.1:2379"
    assert alone["initial-cluster"] == "1=http://127.0.0.1:2380"
    assert not any("cert" in flag for flag in alone)


@pytest.mark.parametrize("etcd", ["['http://a', 'https://b:1']", "'http://a, https://b:1'"])
def test_members_of_etcd_are_a_list_or_have_commas_between(etcd: str) -> None:
    assert load(f"[cluster]\netcd = {etcd}").config.cluster.endpoints == ["http://a", "https://b:1"]


def test_secrets_are_not_shown() -> None:
    shown = load("[cluster]\npassword = 'p'\nuser = 'u'\n[admin]\ntoken = '" + "0" * 64 + "'").flat()
    assert [shown[name] for name in ("cluster.password", "cluster.user", "admin.token")] == ["…", "u", "…"]


def test_a_bad_value_names_its_origin() -> None:
    assert "environment BRAID_LISTENERS__MLOG__PORT" in refused("", {"BRAID_LISTENERS__MLOG__PORT": "many"})
    assert "flag" in refused("", {}, drain_seconds="soon")


# -- exposure ------------------------------------------------------------------------------------------------


def exposure(text: str) -> str | None:
    try:
        check_exposure(load(text).config)
    except BrokerError as error:
        return str(error)
    return None


def test_loopback_is_open() -> None:
    assert exposure("") is None
    for host in ("127.0.0.1", "::1", "localhost"):
        assert exposure(f"[listeners.mlog]\nhost = '{host}'") is None


def test_the_admin_token_closes_the_registry() -> None:
    text = "[registry]\nhost = '0.0.0.0'\n"
    assert "the schema registry would be open to all clients on 0.0.0.0: set auth.tokens or admin.token" in str(
        exposure(text)
    )
    assert exposure(f"{text}[admin]\ntoken = '{'0' * 64}'") is None


def test_reserved_principals_have_no_token() -> None:
    for name in ("anonymous", "*", "__console"):
        with pytest.raises(BrokerError, match="is no principal that could have a token"):
            Authorize({name: "0" * 64}, [])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org"])
def test_everything_else_is_not_open_by_accident(host: str) -> None:
    text = f"[listeners.mlog]\nhost = '{host}'\n"
    assert "listener mlog would be open to all clients" in (exposure(text) or "")
    assert exposure(text + "enabled = false") is None
    assert exposure(text + f"[auth.tokens]\na = '{'0' * 64}'") is None
    assert exposure(text + "[auth]\nallow_open = true") is None
    assert exposure(text + "[listeners.mlog.tls]\ncert = 'c.pem'\nclient_ca = 'ca.pem'") is None
    assert exposure(text + "[listeners.mlog.tls]\ncert = 'c.pem'") is not None, "TLS alone lets everyone in"


def test_the_guide_names_settings_that_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:auth|limits|quotas)\.[a-z_.]+)`", page))
    assert len(named) > 12
    assert named <= set(load_config(None, {}, {}).flat())


def test_urls_are_shown_without_who_is_named_in_them() -> None:
    etcd = ["https://ann:word@10.0.0.1:2379", "https://10.0.0.2:2379"]
    shown = load_config(None, {}, {"cluster.etcd": etcd, "tables.warehouse": "s3://a:word@h/w"}).flat()
    assert shown["cluster.etcd"] == ["https://…@10.0.0.1:2379", "https://10.0.0.2:2379"]
    assert shown["tables.warehouse"] == "s3://…@h/w"
