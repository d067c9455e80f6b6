"""Settings of a server: from defaults, a TOML file, the environment and flags, each value with its origin.

Knows: names, defaults, where a value came from, what is spelled wrong. Refuses to know: what the values do.
Later ones win: default < file < environment < flag. An unknown name is refused, with the one that was probably meant.

    BRAID_DATA_DIR=/var/lib/braidlog            data_dir = "/var/lib/braidlog"
    BRAID_LISTENERS__CURSUS__PORT=10000         [listeners.cursus]  port = 10000
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from braidlog.coordinator.consumer_groups.service import ConsumerGroupSettings
from braidlog.coordinator.groups.classic_group import INITIAL_DELAY_MS
from braidlog.coordinator.state_limits import StateLimits
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.redaction import HIDDEN, without_credentials
from braidlog.model.reporting.node_report import ADMIN_PORT, REGISTRY_PORT
from braidlog.model.settings import UNLIMITED, TopicSettings
from braidlog.partition.maintenance.scrubber import ScrubSettings
from braidlog.partition.produce.append import DecompressionLimits
from braidlog.security.authorization import CONSOLE, Rule
from braidlog.security.quotas import Quotas, Rates, check_percent
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.net.connection_limits import SessionLimits
from braidlog.server.net.unauthenticated_limits import UnauthenticatedLimits
from braidlog.server.process.worker_process import WorkerSettings
from braidlog.server.table_export import TablesSettings
from braidlog.wire.dialect import Dialect, dialects

ENVIRONMENT_PREFIX = "BRAID_"
OF_CLIENTS = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in (
        "SERVER",
        "PRINCIPAL",
        "TOKEN_FILE",
        "CA",
        "CERT",
        "CERT_KEY",
        "PROFILE",
        "KV_URL",
        "KV_TOKEN_FILE",
        "STORE_FILE",
        "FEED_URL",
        "ADMIN_URL",
        "ADMIN_TOKEN",
        "ADMIN_TOKEN_FILE",
        "REGISTRY_URL",
    )
)
"""Read by commands that talk to a node; a node that runs in the same environment leaves them alone."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SHA256 = re.compile("[0-9a-fA-F]{64}")
_SECONDS = ("output_seconds_max", "frame_seconds_max", "idle_seconds_max")


def _check_bounds(config: msgspec.Struct, bounds: Mapping[str, tuple[float, float]]) -> None:
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise ValueError(f"{name} must be {low} to {high}, not {value}")  # msgspec adds where it stands


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Certificate and key (PEM); with `client_ca` a client must show a certificate signed by it, whose name is its principal."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        if not self.cert and (self.key or self.client_ca):
            # Without a certificate the port speaks no TLS at all, and a client CA would guard nothing.
            raise BrokerError(Reason.INVALID_SETTING, "tls.key and tls.client_ca need a tls.cert")


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    host: str = "127.0.0.1"
    """The address it listens on; on any other than loopback clients have to say who they are."""
    port: int = 0
    """0 is any free one."""
    advertised_host: str = ""
    """Where clients are sent to, if that is not `host`; the port without the host changes the port alone."""
    advertised_port: int = 0
    tls: TlsConfig = TlsConfig()

    def __post_init__(self) -> None:
        _check_bounds(self, {"port": (0, 65535), "advertised_port": (0, 65535)})


def _listener_class(dialect: Dialect) -> type[msgspec.Struct]:
    """The settings of a dialect's listener: its own port by default, and the options that only it has."""
    bounds = {each.name: each.bounds for each in dialect.listener_options if each.bounds is not None}

    def check(self: ListenerConfig) -> None:
        ListenerConfig.__post_init__(self)
        _check_bounds(self, bounds)

    fields: list[tuple[str, type, Any]] = [("port", int, dialect.port)]
    fields += [(each.name, type(each.default), each.default) for each in dialect.listener_options]
    name, namespace = f"{dialect.name.capitalize()}ListenerConfig", {"__post_init__": check}
    return msgspec.defstruct(
        name, fields, bases=(ListenerConfig,), namespace=namespace, frozen=True, forbid_unknown_fields=True
    )


if TYPE_CHECKING:

    class ListenersConfig(msgspec.Struct, frozen=True):
        """A field for each dialect."""

        def __getattr__(self, dialect: str) -> ListenerConfig: ...

else:
    _LISTENERS = {name: _listener_class(each) for name, each in dialects().items()}
    ListenersConfig = msgspec.defstruct(
        "ListenersConfig",
        [(name, kind, kind()) for name, kind in _LISTENERS.items()],
        frozen=True,
        forbid_unknown_fields=True,
    )


class UnauthenticatedConfig(UnauthenticatedLimits, frozen=True, forbid_unknown_fields=True):
    """Where tokens are configured: what a connection may do before its client has shown one."""

    def __post_init__(self) -> None:
        seconds = dict.fromkeys(("first_frame_seconds_max", "seconds_max"), (0.001, 1e9))
        _check_bounds(
            self, dict.fromkeys(self.__struct_fields__, (1, 2**40)) | {"frame_bytes_max": (64, 2**40)} | seconds
        )


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tokens`: principal → SHA-256 of its token in hex. `rules`: what each may do; without any, all may do everything.

    A token is shown with `AUTH <principal> <token>` and a newline before the first frame, on every listener; Cursus has its own
    AUTH as well. A wrong one is answered after a pause, which doubles with each of the same network.
    """

    tokens: dict[str, str] = {}
    users: dict[str, str] = {}
    """Name → verifier of its password, `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`, for doors with SASL."""
    rules: list[Rule] = []
    owner_by_first_use: bool = False
    """Whether a group or transactional id that no rule speaks of is the principal's that used it first; others are refused."""
    allow_open: bool = False
    """Listen on other addresses than loopback without tokens or client certificates."""
    failure_delay_seconds: float = 0.1
    failure_delay_seconds_max: float = 5.0
    failure_memory_seconds: float = 300.0
    """How long a wrong token is held against the network it came from."""
    unauthenticated: UnauthenticatedConfig = UnauthenticatedConfig()

    def __post_init__(self) -> None:
        _check_bounds(
            self,
            dict.fromkeys(
                ("failure_delay_seconds", "failure_delay_seconds_max", "failure_memory_seconds"), (0.0, 25.0 * 3600)
            ),
        )
        if CONSOLE in self.tokens or CONSOLE in self.users:
            raise ValueError(f"{CONSOLE!r} is what nodes call their console: give the user another name")


class LimitsConfig(SessionLimits, frozen=True, forbid_unknown_fields=True):
    """What one connection may use, and all of them together."""

    connections_max: int = 10_000
    """All listeners together; lowered at the start if the process may not have so many sockets open (`ulimit -n`)."""
    connections_per_address_max: int = 5_000
    connections_per_address_per_second: float = UNLIMITED
    """New ones of one address, after a burst of ten seconds' worth; -1 is no limit."""
    memory_bytes_max: int = 128 * 1024 * 1024
    """What all connections may hold together, of frames that are not whole and of answers that are not taken."""
    decompressed_bytes_max: int = DecompressionLimits().decompressed_bytes_max
    """What one request may have decompressed."""
    decompressed_ratio_max: int = DecompressionLimits().decompressed_ratio_max
    """Times its size, of one compressed batch; 4 MiB are free."""

    def decompression(self) -> DecompressionLimits:
        return DecompressionLimits(self.decompressed_bytes_max, self.decompressed_ratio_max)

    def __post_init__(self) -> None:
        rate = {"connections_per_address_per_second": (UNLIMITED, 1e6)}
        bounds = dict.fromkeys(self.__struct_fields__, (1, 2**40)) | dict.fromkeys(_SECONDS, (0.001, 1e9)) | rate
        _check_bounds(self, bounds)
        if UNLIMITED < self.connections_per_address_per_second <= 0:
            raise ValueError("connections_per_address_per_second must be over 0, or -1 for no limit")


class StateConfig(StateLimits, frozen=True, forbid_unknown_fields=True):
    """What a node keeps for its clients: how many topics' partitions, groups, transactional ids and the like, and for how long.

    They and what they hold take at most half of `limits.memory_bytes_max`; beyond that nothing new is made.
    """

    def __post_init__(self) -> None:
        counts = dict.fromkeys(self.__struct_fields__, (1, 2**40))
        rates = {"principal_share": (0.001, 1.0), "topics_per_second": (0.001, 1e9)}
        _check_bounds(self, counts | rates)


class WorkerConfig(WorkerSettings, frozen=True, forbid_unknown_fields=True):
    """The process beside the node that decompresses what is too large for its loop. It is started when it is first needed."""

    def __post_init__(self) -> None:
        bytes_min = {"memory_bytes_max": (64 * 1024 * 1024, 2**40)}
        seconds = dict.fromkeys(("job_seconds_max", "wait_seconds_max"), (0.001, 1e9))
        _check_bounds(self, dict.fromkeys(self.__struct_fields__, (1, 2**40)) | bytes_min | seconds)


class ScrubConfig(ScrubSettings, frozen=True, forbid_unknown_fields=True):
    """How often and how fast what is on the disk is checked again."""

    def __post_init__(self) -> None:
        hours = dict.fromkeys(("round_hours", "check_hours"), (0.001, 1e6))
        _check_bounds(self, {"bytes_per_second": (0, 2**40), **hours})


class QuotasConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes per second of one principal, all its connections together; -1 is no limit. `principals`: other rates for some."""

    append_bytes_per_second: int = UNLIMITED
    fetch_bytes_per_second: int = UNLIMITED
    request_percent: float = UNLIMITED
    """Of the time of the node's one loop, for one principal."""
    address_request_percent: float = UNLIMITED
    """The same for all connections from one address."""
    principals: dict[str, Rates] = {}

    def __post_init__(self) -> None:
        self.default()
        check_percent(self.address_request_percent)

    def default(self) -> Rates:
        return Rates(self.append_bytes_per_second, self.fetch_bytes_per_second, self.request_percent)

    def make(self, connections_per_second: float) -> Quotas:
        return Quotas(self.default(), self.principals, self.address_request_percent, connections_per_second)


class GroupsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Consumer groups."""

    rebalance_delay_ms: int = INITIAL_DELAY_MS
    """How long the first member of an empty group that elects its leader waits for others."""
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    """How long commits of a group without members are kept, and the group itself (10 minutes if it has none); -1 is for ever."""
    session_timeout_ms: int = 45_000
    """How long a member with `group.protocol=consumer` may be silent; classic members bring a time of their own. Kafka's
    `consumer.session.timeout.ms` sets it for one group."""
    heartbeat_interval_ms: int = 5_000
    """The heartbeat interval of such a member. A partition takes as long to change hands. Kafka's
    `consumer.heartbeat.interval.ms` sets it for one group."""

    def __post_init__(self) -> None:
        _check_bounds(
            self,
            {
                "rebalance_delay_ms": (0, 60_000),
                "offsets_retention_ms": (UNLIMITED, 2**62),
                **self.consumer.bounds,
            },
        )

    @property
    def consumer(self) -> ConsumerGroupSettings:
        return ConsumerGroupSettings(self.session_timeout_ms, self.heartbeat_interval_ms)


class WireLogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every message on every listener, taken apart and written down, without its secrets. For debugging: it costs.

    `path`: a file, "-" for standard output, "" for none. `format`: text or json. `hex`: with the bytes of each message.
    `pcapng`: a capture for Wireshark as well.
    """

    path: str = ""
    format: Literal["text", "json"] = "text"
    hex: bool = False
    pcapng: str = ""


class AdminConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web console, metrics and health over HTTP, served by a process of its own beside `braid serve` and `braid dev`.

    `token`: SHA-256 in hex of what everyone has to show who asks for more than /healthz and /readyz; needed on other addresses
    than loopback. `hosts`: names under which browsers may call it, beside addresses and localhost. `sign_in`: everyone has to
    sign in, as a principal of `auth.tokens` or a user with a password; what each may do is what the rules say. `read_only`:
    nothing can be changed in the console, whoever asks.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = ADMIN_PORT
    token: str = ""
    hosts: list[str] = []
    pages: bool = True
    """Off: what machines ask for alone, health and metrics, and the schema registry on its own port."""
    disk_free_bytes_min: int = 128 * 1024 * 1024
    """With less room than this on its disk, a node says on /readyz that it is not ready."""
    sign_in: bool = False
    read_only: bool = False
    tls: TlsConfig = TlsConfig()

    def __post_init__(self) -> None:
        if self.tls.client_ca:
            raise ValueError("admin.tls has no client_ca: browsers sign in (admin.sign_in), programs show admin.token")
        _check_bounds(self, {"port": (0, 65535), "disk_free_bytes_min": (0, 2**62)})
        if self.token and _SHA256.fullmatch(self.token) is None:
            raise ValueError("token is given as the SHA-256 of it: 64 hexadecimal digits")


class RegistryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema registry over HTTP, served by the admin process: there is none where `admin.enabled` is off.

    Whoever the node knows (`auth.tokens`, `auth.users`) shows the same name and secret by HTTP's basic authentication, and may do
    with a subject what it may do with its topic. If the port is taken the node says so and does without.
    """

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = REGISTRY_PORT

    def __post_init__(self) -> None:
        _check_bounds(self, {"port": (0, 65535)})


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node says on standard error. `format`: text, or json with an object on each line."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


IDLE_PARTITION_SECONDS_MIN: Final = 1.0


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    data_dir: str = "braid-data"
    node: str = "0"
    drain_seconds: float = 10.0
    disk_reserve_bytes: int = 64 * 1024 * 1024
    """With less room than this on its disk, a node takes no records and no keys: what is left is for the node itself."""
    idle_partition_seconds: float = 600.0
    """A partition that nobody has written to or read from for so long is closed, until it is used again; 0 for never. At least
    `IDLE_PARTITION_SECONDS_MIN`: to close and open what is in use costs more than to keep it open."""
    listeners: ListenersConfig = ListenersConfig()
    cluster: ClusterConfig = ClusterConfig()
    topics: TopicSettings = TopicSettings()
    groups: GroupsConfig = GroupsConfig()
    auth: AuthConfig = AuthConfig()
    limits: LimitsConfig = LimitsConfig()
    state: StateConfig = StateConfig()
    worker: WorkerConfig = WorkerConfig()
    scrub: ScrubConfig = ScrubConfig()
    tables: TablesSettings = TablesSettings()
    quotas: QuotasConfig = QuotasConfig()
    wire_log: WireLogConfig = WireLogConfig()
    kv: KeyValueSettings = KeyValueSettings()
    admin: AdminConfig = AdminConfig()
    registry: RegistryConfig = RegistryConfig()
    log: LogConfig = LogConfig()

    def __post_init__(self) -> None:
        if self.idle_partition_seconds:
            _check_bounds(self, {"idle_partition_seconds": (IDLE_PARTITION_SECONDS_MIN, 1e9)})

    @property
    def knows_principals(self) -> bool:
        """Whether clients can say who they are, so that one of them can be told from another."""
        tls = (getattr(self.listeners, name).tls for name in ListenersConfig.__struct_fields__)
        return bool(self.auth.tokens or self.auth.users or any(each.client_ca for each in tls))

    @property
    def is_guarded(self) -> bool:
        """Whether clients have to prove who they are."""
        return self.knows_principals or bool(self.auth.rules)


class LoadedConfig(msgspec.Struct, frozen=True):
    config: ServerConfig
    origins: dict[str, str]
    """Dotted name → "default", "file …", "environment …" or "flag"."""

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted name. Tokens are shown by name only: even a hash is nobody's business; URLs without who
        is named in them."""
        values = _flatten(msgspec.to_builtins(self.config))
        for secret in ("auth.tokens", "auth.users", "tables.catalog"):
            values[secret] = dict.fromkeys(values[secret], HIDDEN)
        for secret in ("admin.token", "cluster.password", "cluster.token"):
            if values[secret]:
                values[secret] = HIDDEN
        return {name: _without_credentials(value) for name, value in values.items()}


def load_config(file: tuple[str, str] | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> LoadedConfig:
    """Put the layers together. `file` is (name, text); `flags` are dotted names."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        try:
            parsed = tomllib.loads(file[1])
        except tomllib.TOMLDecodeError as error:
            raise BrokerError(Reason.INVALID_SETTING, f"{file[0]}: {error}") from error
        _merge(values, origins, _flatten(parsed), f"file {file[0]}")
    found = {
        _dotted(name): (name, value)
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in OF_CLIENTS
    }
    for dotted, (name, value) in sorted(found.items()):
        _merge(values, origins, {dotted: value}, f"environment {name}")
    _merge(values, origins, dict(flags), "flag")
    try:
        config = msgspec.convert(values, ServerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise BrokerError(Reason.INVALID_SETTING, _blame(error, origins)) from error
    every = _flatten(msgspec.to_builtins(config))
    return LoadedConfig(config, {name: origins.get(name, "default") for name in every} | origins)


def _blame(error: msgspec.ValidationError, origins: Mapping[str, str]) -> str:
    """The refusal with the setting's name and where its value came from."""
    text, _, path = str(error).partition(" - at `$.")
    dotted = path.rstrip("`")
    # A check of a whole section blames the section; name what was set in it.
    set_there = sorted(f"{name} ({origins[name]})" for name in origins if f"{name}.".startswith(f"{dotted}."))
    return f"{', '.join(set_there) or dotted}: {text}" if dotted else text


def _dotted(name: str) -> str:
    return name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")


def _without_credentials(value: Any) -> Any:  # noqa: ANN401 - whatever a setting holds
    if isinstance(value, list):
        return [_without_credentials(each) for each in value]
    return without_credentials(value) if isinstance(value, str) else value


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, dict) and dotted not in _FREE_TABLES:
            flat |= _flatten(value, f"{dotted}.")
        else:
            flat[dotted] = value
    return flat


def _merge(values: dict[str, Any], origins: dict[str, str], new: Mapping[str, Any], origin: str) -> None:
    for dotted, value in new.items():
        _check_name(dotted, origin)
        place = values
        *folders, leaf = dotted.split(".")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = value
        origins[dotted] = origin


def _check_name(dotted: str, origin: str) -> None:
    if dotted not in _NAMES:
        close = difflib.get_close_matches(dotted, _NAMES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise BrokerError(Reason.INVALID_SETTING, f"{origin}: there is no setting {dotted!r}{hint}")


def check_exposure(config: ServerConfig) -> None:
    """Refuse to be open to the network by accident."""
    for name in ListenersConfig.__struct_fields__:
        listener: ListenerConfig = getattr(config.listeners, name)
        shows_who = listener.tls.cert and listener.tls.client_ca
        guarded = config.auth.tokens or config.auth.users or shows_who or config.auth.allow_open
        if listener.enabled and listener.host not in LOOPBACK and not guarded:
            raise _open_to_all(f"listener {name}", listener.host, "auth.tokens, or its tls.client_ca")
    admin, registry = config.admin, config.registry
    is_known = config.auth.tokens or config.auth.users or config.auth.allow_open
    if admin.enabled and registry.enabled and registry.host not in LOOPBACK and not (is_known or admin.token):
        raise _open_to_all("the schema registry", registry.host, "auth.tokens or admin.token")
    if admin.enabled and admin.host not in LOOPBACK and not (admin.token or admin.sign_in or config.auth.allow_open):
        raise _open_to_all("the admin port", admin.host, "admin.token or admin.sign_in")


def _open_to_all(what: str, host: str, settings: str) -> BrokerError:
    remedy = f"set {settings}, or say auth.allow_open = true (--allow-open) if that is what you want"
    return BrokerError(Reason.INVALID_SETTING, f"{what} would be open to everyone on {host}: {remedy}")


_FREE_TABLES = frozenset({"auth.tokens", "auth.users", "quotas.principals", "tables.catalog"})
_NAMES = frozenset(_flatten(msgspec.to_builtins(ServerConfig())))
