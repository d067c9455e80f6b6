"""Settings of a node: from defaults, a TOML file, the environment and flags, each value with its origin.

Later sources override earlier ones: default < file < environment < flag. An unknown name is an error that names the
closest known setting. Does not handle: the effect of a setting.

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
"""Variables of the client commands; a node that runs in the same environment ignores them."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SHA256 = re.compile("[0-9a-fA-F]{64}")
_SECONDS = ("output_seconds_max", "frame_seconds_max", "idle_seconds_max")


def _check_bounds(config: msgspec.Struct, bounds: Mapping[str, tuple[float, float]]) -> None:
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise ValueError(f"{name} must be {low} to {high}, not {value}")  # msgspec adds the path


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS of one port. Without a certificate the port uses no TLS."""

    cert: str = ""
    """PEM file of the certificate chain; enables TLS."""
    key: str = ""
    """PEM file of the private key; empty: the key is in `cert`."""
    client_ca: str = ""
    """PEM file of the CA of client certificates: clients must present one, whose name is their principal. Not for
    `admin.tls`."""

    def __post_init__(self) -> None:
        if not self.cert and (self.key or self.client_ca):
            # Without a certificate the port uses no TLS, and a client CA would have no effect.
            raise BrokerError(Reason.INVALID_SETTING, "tls.key and tls.client_ca need a tls.cert")


class ListenerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    """Accept clients of this protocol."""
    host: str = "127.0.0.1"
    """Address to listen on. Addresses other than loopback need authentication, or `auth.allow_open`."""
    port: int = 0
    """Port to listen on; 0: any free port."""
    advertised_host: str = ""
    """Host in the addresses that clients receive. Empty: in a cluster `cluster.peers.advertised_host`, else `host`; on
    a single node the address that the client reached."""
    advertised_port: int = 0
    """Port in the addresses that clients receive; 0: `port`."""
    tls: TlsConfig = TlsConfig()

    def __post_init__(self) -> None:
        _check_bounds(self, {"port": (0, 65535), "advertised_port": (0, 65535)})


def _listener_class(dialect: Dialect) -> type[msgspec.Struct]:
    """Return the settings class of a dialect's listener: its default port, and the dialect's own options."""
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
    """Limits of connections whose clients have not authenticated. They apply where tokens or users are configured."""

    def __post_init__(self) -> None:
        seconds = dict.fromkeys(("first_frame_seconds_max", "seconds_max"), (0.001, 1e9))
        _check_bounds(
            self, dict.fromkeys(self.__struct_fields__, (1, 2**40)) | {"frame_bytes_max": (64, 2**40)} | seconds
        )


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without rules, every principal may do everything.

    On every listener, a client authenticates with a line `AUTH <principal> <token>` before its first frame; Cursus also
    has an AUTH command. A failed attempt is answered after a delay, which doubles with each failure of the same network
    (an IPv4 address, or the /64 of an IPv6 address).
    """

    tokens: dict[str, str] = {}
    """Principal → SHA-256 of its token, in hex."""
    users: dict[str, str] = {}
    """User → SCRAM verifier, `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`, for listeners with SASL."""
    rules: list[Rule] = []
    """Operations that principals may perform, by topic and group."""
    owner_by_first_use: bool = False
    """A group or transactional id without a rule belongs to the first principal that uses it; others are refused."""
    allow_open: bool = False
    """Listen on addresses other than loopback without tokens or client certificates."""
    failure_delay_seconds: float = 0.1
    """Delay of the answer to a network's first failed authentication."""
    failure_delay_seconds_max: float = 5.0
    """Maximum delay of the answer to a failed authentication."""
    failure_memory_seconds: float = 300.0
    """How long after its last failure a network's failed authentications are remembered."""
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
    """Limits of one connection, of one address, and of all connections together."""

    connections_max: int = 10_000
    """Maximum connections of all listeners. The node lowers it at start to fit the open-files limit (`ulimit -n`)."""
    connections_per_address_max: int = 5_000
    """Maximum connections from one address to all listeners."""
    connections_per_address_per_second: float = UNLIMITED
    """Rate of new connections from one address, with a burst of ten seconds' worth; -1: no limit."""
    memory_bytes_max: int = 128 * 1024 * 1024
    """Memory for all connections' incomplete frames, pending requests and unsent answers, and for client state
    (`[state]`)."""
    decompressed_bytes_max: int = DecompressionLimits().decompressed_bytes_max
    """Maximum decompressed size of one request."""
    decompressed_ratio_max: int = DecompressionLimits().decompressed_ratio_max
    """Maximum ratio of decompressed to compressed size of one batch; it does not apply up to 4 MiB."""

    def decompression(self) -> DecompressionLimits:
        return DecompressionLimits(self.decompressed_bytes_max, self.decompressed_ratio_max)

    def __post_init__(self) -> None:
        rate = {"connections_per_address_per_second": (UNLIMITED, 1e6)}
        bounds = dict.fromkeys(self.__struct_fields__, (1, 2**40)) | dict.fromkeys(_SECONDS, (0.001, 1e9)) | rate
        _check_bounds(self, bounds)
        if UNLIMITED < self.connections_per_address_per_second <= 0:
            raise ValueError("connections_per_address_per_second must be over 0, or -1 for no limit")


class StateConfig(StateLimits, frozen=True, forbid_unknown_fields=True):
    """Limits on state that a node keeps for clients: partitions, groups, transactional ids, producers.

    Together they use at most half of `limits.memory_bytes_max`; beyond that the node refuses new state.
    """

    def __post_init__(self) -> None:
        counts = dict.fromkeys(self.__struct_fields__, (1, 2**40))
        rates = {"principal_share": (0.001, 1.0), "topics_per_second": (0.001, 1e9)}
        _check_bounds(self, counts | rates)


class WorkerConfig(WorkerSettings, frozen=True, forbid_unknown_fields=True):
    """The worker process that decompresses large batches outside the event loop. It starts with its first job."""

    def __post_init__(self) -> None:
        bytes_min = {"memory_bytes_max": (64 * 1024 * 1024, 2**40)}
        seconds = dict.fromkeys(("job_seconds_max", "wait_seconds_max"), (0.001, 1e9))
        _check_bounds(self, dict.fromkeys(self.__struct_fields__, (1, 2**40)) | bytes_min | seconds)


class ScrubConfig(ScrubSettings, frozen=True, forbid_unknown_fields=True):
    """Background verification of closed segments against disk corruption."""

    def __post_init__(self) -> None:
        hours = dict.fromkeys(("round_hours", "check_hours"), (0.001, 1e6))
        _check_bounds(self, {"bytes_per_second": (0, 2**40), **hours})


class QuotasConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each quota covers all connections of one principal to this node. The node delays a client above its quota."""

    append_bytes_per_second: int = UNLIMITED
    """Bytes per second that one principal may send; -1: no limit."""
    fetch_bytes_per_second: int = UNLIMITED
    """Bytes per second that one principal may receive; -1: no limit."""
    request_percent: float = UNLIMITED
    """Share of the event loop's time, in percent, that one principal's requests may use; -1: no limit."""
    address_request_percent: float = UNLIMITED
    """Share of the event loop's time, in percent, that all connections from one address may use; -1: no limit."""
    principals: dict[str, Rates] = {}
    """Quotas of single principals, which replace the three above: a table per principal with the same names."""

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
    """How long the first rebalance of an empty classic group waits for more members."""
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    """How long an empty group and its committed offsets are kept; a group without commits is deleted after 10 minutes.
    -1: no limit."""
    session_timeout_ms: int = 45_000
    """Session timeout of members with `group.protocol=consumer`; classic members choose their own. Kafka's
    `consumer.session.timeout.ms` sets it for one group."""
    heartbeat_interval_ms: int = 5_000
    """Heartbeat interval of members with `group.protocol=consumer`; a partition takes as long to move between members.
    Kafka's `consumer.heartbeat.interval.ms` sets it for one group."""

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
    """Secrets are omitted. Decoding costs processor time: for debugging only."""

    path: str = ""
    """File of the log; "-": standard output; empty: no log."""
    format: Literal["text", "json"] = "text"
    """text, or json: one object per line."""
    hex: bool = False
    """Log the bytes of each message too."""
    pcapng: str = ""
    """File of a packet capture for Wireshark; empty: no capture."""


class AdminConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`braid serve` and `braid dev` start a separate process for it."""

    enabled: bool = True
    """Start the admin process. Off: no console, metrics, health checks or schema registry over HTTP."""
    host: str = "127.0.0.1"
    """Address to listen on. Addresses other than loopback need `token`, `sign_in` or `auth.allow_open`."""
    port: int = ADMIN_PORT
    """Port to listen on; 0: any free port."""
    token: str = ""
    """SHA-256, in hex, of the admin token, which requests other than /healthz and /readyz must present; empty: none."""
    hosts: list[str] = []
    """Host names by which browsers may open the console, in addition to IP addresses and localhost."""
    pages: bool = True
    """Serve the console's pages. Off: only health, metrics and, on its own port, the schema registry."""
    disk_free_bytes_min: int = 128 * 1024 * 1024
    """With less free space on its disk, a node reports on /readyz that it is not ready."""
    sign_in: bool = False
    """Users must sign in, as a principal of `auth.tokens` or a user with a password; `auth.rules` apply to them."""
    read_only: bool = False
    """Disable all changes in the console, for every user."""
    tls: TlsConfig = TlsConfig()

    def __post_init__(self) -> None:
        if self.tls.client_ca:
            raise ValueError("admin.tls has no client_ca: browsers sign in (admin.sign_in), programs show admin.token")
        _check_bounds(self, {"port": (0, 65535), "disk_free_bytes_min": (0, 2**62)})
        if self.token and _SHA256.fullmatch(self.token) is None:
            raise ValueError("token is given as the SHA-256 of it: 64 hexadecimal digits")


class RegistryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema registry over HTTP, served by the admin process; it needs `admin.enabled`.

    Principals and users (`auth.tokens`, `auth.users`) authenticate with HTTP basic authentication; a principal's
    permissions on a subject are those on its topic. If the port is in use, the node logs a warning and runs without a
    registry.
    """

    enabled: bool = True
    """Serve the schema registry."""
    host: str = "127.0.0.1"
    """Address to listen on. Addresses other than loopback need `auth.tokens`, `auth.users`, `admin.token` or
    `auth.allow_open`."""
    port: int = REGISTRY_PORT
    """Port to listen on; 0: any free port."""

    def __post_init__(self) -> None:
        _check_bounds(self, {"port": (0, 65535)})


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Format and level of the node's log."""

    format: Literal["text", "json"] = "text"
    """text, or json: one object per line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged: debug, info, warning or error."""


IDLE_PARTITION_SECONDS_MIN: Final = 1.0


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    data_dir: str = "braid-data"
    """Folder of the log and of the node's own state."""
    node: str = "0"
    """Number of this node."""
    drain_seconds: float = 10.0
    """How long a shutdown waits for requests in progress."""
    disk_reserve_bytes: int = 64 * 1024 * 1024
    """With less free space on its disk, a node refuses records and keys; the rest is for the node itself."""
    idle_partition_seconds: float = 600.0
    """Close partitions that were neither read nor written for this time, until their next use; 0: never. At least
    `IDLE_PARTITION_SECONDS_MIN`: closing and reopening a partition in use costs more than keeping it open."""
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
        """Whether clients can authenticate, so that the node can distinguish principals."""
        tls = (getattr(self.listeners, name).tls for name in ListenersConfig.__struct_fields__)
        return bool(self.auth.tokens or self.auth.users or any(each.client_ca for each in tls))

    @property
    def is_guarded(self) -> bool:
        """Whether clients must authenticate."""
        return self.knows_principals or bool(self.auth.rules)


class LoadedConfig(msgspec.Struct, frozen=True):
    config: ServerConfig
    origins: dict[str, str]
    """Dotted name → "default", "file …", "environment …" or "flag"."""

    def flat(self) -> dict[str, Any]:
        """Return every setting by its dotted name, without secrets: no tokens or hashes, no credentials in URLs."""
        values = _flatten(msgspec.to_builtins(self.config))
        for secret in ("auth.tokens", "auth.users", "tables.catalog"):
            values[secret] = dict.fromkeys(values[secret], HIDDEN)
        for secret in ("admin.token", "cluster.password", "cluster.token"):
            if values[secret]:
                values[secret] = HIDDEN
        return {name: _without_credentials(value) for name, value in values.items()}


def load_config(file: tuple[str, str] | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> LoadedConfig:
    """Merge the layers and validate the result. `file` is (name, text); `flags` are dotted names."""
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
    """Return the error text, with the setting's name and the origin of its value."""
    text, _, path = str(error).partition(" - at `$.")
    dotted = path.rstrip("`")
    # A check of a whole section names the section only: add the settings that were set in it.
    set_there = sorted(f"{name} ({origins[name]})" for name in origins if f"{name}.".startswith(f"{dotted}."))
    return f"{', '.join(set_there) or dotted}: {text}" if dotted else text


def _dotted(name: str) -> str:
    return name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")


def _without_credentials(value: Any) -> Any:  # noqa: ANN401 - the value of any setting
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
    """Raise if a port would be open to the network without authentication."""
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
    return BrokerError(Reason.INVALID_SETTING, f"{what} would be open to all clients on {host}: {remedy}")


_FREE_TABLES = frozenset({"auth.tokens", "auth.users", "quotas.principals", "tables.catalog"})
_NAMES = frozenset(_flatten(msgspec.to_builtins(ServerConfig())))
