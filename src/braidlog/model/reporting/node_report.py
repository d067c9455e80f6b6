"""Messages between a node and its console.

Questions and answers are lines of JSON over a socket that only these two processes share.
Invariant: every answer is bounded. Where it could have more rows than `*_MAX`, the answer says how many were left
out.

    console → node   {"id": 7, "ask": "snapshot"}
    node → console   {"id": 7, "answer": {…}}          or   {"id": 7, "error": "…"}
    node → console   {"id": 8, "event": {…}}           an event of a watched connection; ends with "answer"
"""

from typing import Any, Final, Literal

import msgspec

from braidlog.model.clock import BUCKETS

ADMIN_PORT: Final = 9644
"""Default port of the console (`admin.port`)."""
REGISTRY_PORT: Final = 8081
"""Default port of the schema registry (`registry.port`)."""
LOCAL_REGISTRY_URL: Final = f"http://127.0.0.1:{REGISTRY_PORT}"
LOCAL_ADMIN_URL: Final = f"http://127.0.0.1:{ADMIN_PORT}"
LINE_BYTES_MAX: Final = 32 * 1024 * 1024
PARTITIONS_MAX: Final = 10_000
LAGS_MAX: Final = 10_000
CONNECTIONS_MAX: Final = 1_000
KEYS_MAX: Final = 200
KEYS_LOOKED_AT_MAX: Final = 20_000
WATCHED_BYTES_MAX: Final = 256 * 1024
"""Maximum bytes of one watched message; the console shows only that a longer one was too long."""

NOBODY = -1  # no node
FENCED: Final = "fenced"  # a node's state
WEAK_MAX: Final = 200

Ask = Literal[
    "snapshot",
    "settings",
    "connections",
    "keys",
    "events",
    "watch",
    "unwatch",
    "schemas",
    "append_schemas",
    "compare_schemas",
    "may",
    "roles",
    "sign_in",
    "audit",
]

DOOR: Final = "console"
"""The console's name where listeners are distinguished."""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    ask: Ask
    connection: int = 0
    """For `watch`: a connection's number. For `unwatch`: the id of the question that started it."""
    prefix: bytes = b""
    position: int = 0
    topic: str = ""
    """For `events`: only events of this partition."""
    partition: int = -1
    node: int = NOBODY  # for `snapshot` and `keys`: query this other node
    entries: list[tuple[bytes, bytes | None]] = []
    """For `append_schemas`, at `position` of the topic with the id `topic`; `schemas` are read from there on."""
    payload: bytes = b""  # for `compare_schemas`: the task
    principal: str = ""
    """For `may`: the user ("" for anonymous), a token or a password, the address, and the operations on topics."""
    password: str = ""
    address: str = ""
    """The address of the client or the browser, also for `sign_in` and `audit`."""
    wishes: list[tuple[str, str | None]] = []
    words: str = ""
    """For `audit`: the audited change."""
    door: str = ""
    """For `audit`: the listener of the change. For `may`, `DOOR`: the user was authenticated at sign-in there."""


class SchemaPage(msgspec.Struct, frozen=True):
    """Records of the schemas' log. `begin` differs from the requested position if the topic was replaced."""

    topic_id: str
    begin: int
    next_offset: int
    end: int
    entries: list[tuple[bytes, bytes | None]]


class Permission(msgspec.Struct, frozen=True):
    """`is_known`: valid credentials, or none needed. `allowed`: the verdict per operation. `principal`: the user."""

    is_known: bool
    allowed: list[bool]
    principal: str = ""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    answer: Any = None
    error: str | None = None
    reason: str = ""
    """For an error: the name of its `Reason`."""
    event: Any = None


class Welcome(msgspec.Struct, frozen=True):
    """The first line: what the console needs to know about its node. It holds secrets and is never shown."""

    node: str
    version: str
    data_dir: str
    started_ms: int
    topics_url: str
    keys_url: str
    token_hash: str
    """SHA-256 of the admin token in hex; "" without a token."""
    hosts: list[str]
    """Host names by which browsers may call the console, besides addresses and localhost."""
    secret: str
    """Signs cookies. It survives a restart of the console."""
    disk_free_bytes_min: int
    log_format: str
    log_level: str
    listeners: dict[str, str] = {}
    """Dialect → URL, for commands that a user may copy."""
    has_pages: bool = True
    """Whether pages are served. Without them only endpoints for machines exist: health, metrics, schemas."""
    door_secret: str = ""
    """Makes tokens for the private listeners, for the console and for signed-in users (`actor.py`)."""
    sign_in: bool = False
    """Whether users must sign in with the node's users and tokens."""
    has_principals: bool = False
    """Whether the node has any user or token."""
    read_only: bool = False
    """Whether the console is read-only."""
    tls_cert: str = ""
    tls_key: str = ""


class Roles(msgspec.Struct, frozen=True):
    """What the node's rules permit a user in general; each request is checked separately."""

    view: bool = False
    operate: bool = False
    administer: bool = False


class ListenerReport(msgspec.Struct, frozen=True):
    """One listener. Counts are since the node started."""

    dialect: str
    host: str
    port: int
    is_tls: bool
    is_serving: bool
    connections: int
    accepted: int
    cut_off: int
    bytes_in: int
    bytes_out: int
    requests: dict[str, int]
    throttled: int
    throttled_seconds: float
    turned_away: int
    seconds: dict[str, list[int]]
    """By operation: a histogram (`measure.py`) of one request in `sampled`."""
    seconds_total: dict[str, float]
    sampled: int


class PartitionReport(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    partition: int
    start_offset: int = 0
    high_watermark: int = 0
    end_offset: int = 0
    size_bytes: int = 0
    segments: int = 0
    fault: str = ""
    """Why the partition is offline or rejects writes; "" if it serves."""
    is_offline: bool = False
    is_led: bool = False
    """Whether the reporting node leads it."""


class LagReport(msgspec.Struct, frozen=True):
    """One partition that a group reads or has committed. `committed` is None before the first commit."""

    group: str
    topic: str
    partition: int
    committed: int | None
    end_offset: int
    lag: int
    member: str | None = None


class GroupReport(msgspec.Struct, frozen=True):
    group: str
    state: str
    generation: int
    protocol: str
    members: int
    kind: str = ""


class KeyValueReport(msgspec.Struct, frozen=True):
    fault: str = ""
    counts: dict[str, int] = {}
    """The fields of `kv.operations.Stats`."""
    used_bytes: int = 0
    limit_bytes: int = 0
    led_slots: int = 0
    """Used bytes by node of a cluster."""
    differences: int = 0
    """Comparisons in which a local replica differed from its leader."""


class ProcessReport(msgspec.Struct, frozen=True):
    pid: int
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    open_files_max: int
    loop_lag_seconds: float
    """Delay of the event loop at its last timer."""


class WorkerReport(msgspec.Struct, frozen=True):
    """A worker process of the node."""

    is_running: bool
    jobs: list[int]
    """Completed jobs by duration."""
    jobs_seconds_total: float
    waiting: int
    waiting_bytes: int
    failed: int
    """Jobs that failed, were rejected, or started too late."""
    starts: int


class ScrubReport(msgspec.Struct, frozen=True):
    """Scrubbing: stored segments are read and verified in rounds. Counts are since the node started."""

    read_bytes: int
    damages: int
    """Damaged places that scrubbing found and the partition confirmed."""
    rounds: int
    partitions_left: int
    """Partitions left in the current round; 0 between rounds."""


class TableState(msgspec.Struct, frozen=True):
    """A topic's table, as reported by a node that exports the partitions it leads."""

    topic: str
    form: str
    offsets: dict[int, int] = {}
    """For each partition: all offsets below are in the table."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    metadata: str = ""
    """Path of its newest metadata file."""
    committed_ms: int = 0
    """Time of the last change; 0: never."""
    lag: int = 0
    """Offsets of partitions led by this node that are not in the table yet."""
    lag_bytes: int = 0
    """Approximate log bytes of those offsets."""
    undecoded: int = 0
    """Rows whose value does not fit the format: their columns are null."""
    error: str = ""
    """Why writes fail; empty if they succeed."""


class StateReport(msgspec.Struct, frozen=True):
    """The number of state entries of one kind, and its limit."""

    kind: str
    used: int
    limit: int


class NodeReport(msgspec.Struct, frozen=True):
    """A node of the cluster. `state`: alive, fenced or draining. `doors`: addresses of its listeners. `leads`,
    `holds`, `in_sync` count partitions. `behind`: its replication lag in partitions that the reporting node leads.
    `coordinates`: its shards of groups and transactions.
    """

    node: int
    state: str
    rack: str
    doors: dict[str, str]
    leads: int
    holds: int
    in_sync: int
    behind: int = 0
    coordinates: int = 0


class UnderReplicatedPartition(msgspec.Struct, frozen=True):
    """A partition without a leader, or with an ISR smaller than its replicas."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    min_in_sync: int


class EtcdReport(msgspec.Struct, frozen=True):
    """The cluster's metadata store. A single node stores its own metadata, which is always available."""

    is_up: bool = True
    outages: int = 0
    seconds: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    """Histogram of its request durations."""
    seconds_total: float = 0.0


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as this node sees it. `under_replicated`, `below_replication_factor`, `below_min` count partitions it leads."""

    is_alone: bool
    own: int
    controller: int
    nodes: list[NodeReport]
    partitions: int
    under_replicated: int
    below_replication_factor: int
    """Partitions with fewer replicas than their topic's replication factor."""
    below_min: int
    leaderless: int
    weak_slots: int
    """The part of `under_replicated` that holds keys."""
    weak: list[UnderReplicatedPartition]
    weak_left_out: int
    leader_changes: dict[str, int]
    """Leader changes by cause, since the node started."""
    forwarded: list[tuple[str, int, int]]
    """The call, the target node, and the count since this node started."""
    etcd: EtcdReport


class EventReport(msgspec.Struct, frozen=True):
    """An event of a partition. `is_turn`: a new leader epoch began."""

    seq: int
    index: int
    time_ms: int
    event: str
    topic: str
    partition: int
    is_turn: bool
    words: str


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions, and the lag of groups in them."""

    partitions: list[PartitionReport]
    lags: list[LagReport]


class NodeLog(LogReport, frozen=True, kw_only=True):
    """One node's part of a cluster's report: its local partitions, and the groups that it coordinates."""

    groups: list[GroupReport]
    shards: tuple[int, int] = (0, 0)
    """Coordinator shards that this node serves, and their total; the total is 0 before the first group."""


class Snapshot(NodeLog, frozen=True, kw_only=True):
    """The state of a node at one time."""

    taken_ms: int
    uptime_seconds: float
    listeners: list[ListenerReport]
    connections: int
    connections_max: int
    budget_bytes: int
    budget_bytes_max: int
    let_go: int
    records_appended: int
    bytes_appended: int
    batches_appended: int
    records_fetched: int
    bytes_fetched: int
    sync_seconds: list[int]
    sync_seconds_total: float
    topics: int
    partitions_left_out: int
    partitions_open: int
    partitions_closed: int
    """Partitions closed because they are not in use."""
    lags_left_out: int
    keyvalue: KeyValueReport
    process: ProcessReport
    worker: WorkerReport
    """The worker for requests that clients wait for."""
    upkeep: WorkerReport
    """The worker for compaction and scrubbing."""
    table_workers: list[WorkerReport]
    """The workers that convert segments to rows: the first, and additional ones under load."""
    tables: list[TableState]
    scrub: ScrubReport
    state: list[StateReport]
    state_bytes: int
    state_bytes_max: int
    cluster: ClusterReport
    warnings: dict[str, str] = {}
    """Problems during which clients are still served, by the name of the check: cluster metadata, the node's clock."""
    silent: dict[int, str] = {}
    """Other nodes that did not respond to the console, and why: data that only they hold is missing here."""
    quarantined: dict[str, int] = {}
    """Quarantined copies and topics in the data folder by reason. They stay until an operator removes them."""


class ConnectionReport(msgspec.Struct, frozen=True):
    number: int
    dialect: str
    peer: str
    principal: str
    requests: int
    bytes_in: int
    bytes_out: int
    seconds: float
    idle_seconds: float
    held_bytes: int
    is_tls: bool
    is_watched: bool


class Connections(msgspec.Struct, frozen=True):
    rows: list[ConnectionReport]
    left_out: int


class SettingReport(msgspec.Struct, frozen=True):
    name: str
    value: Any
    origin: str


class Check(msgspec.Struct, frozen=True):
    """One health check, and the problem it found."""

    name: str
    ok: bool
    reason: str = ""


class NodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A node's description for its operator. Disk bytes: -1 if unknown. Settings (without secrets), `stacks`: on
    request.
    """

    node: str
    version: str
    kernel: str
    python: str
    data_dir: str
    disk_bytes: int
    disk_free_bytes: int
    checks: list[Check]
    snapshot: Snapshot
    settings: list[SettingReport] = []
    stacks: dict[str, str] = {}


class KeyReport(msgspec.Struct, frozen=True):
    key: bytes
    kind: str
    ttl_seconds: float | None


class Keys(msgspec.Struct, frozen=True):
    """Keys with a prefix. `next_position`: the next page, or None. Keys that change between pages may be missed."""

    rows: list[KeyReport]
    next_position: int | None
    keys: int


class WatchedPiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of a watched connection: data (`side`), its end, or dropped events (`lost`)."""

    time_ns: int
    side: str = ""
    data: bytes = b""
    lost: int = 0
    is_closed: bool = False


UNKNOWN_END = -1
"""The end offset of a partition without a local replica: only another node knows it."""


def lag_of(committed: int | None, start: int, end: int) -> int:
    """Return the records between a group's committed offset and the end. Without a valid commit the group starts at
    the partition's start.
    """
    return max(end - max(start if committed is None else committed, start), 0)


class QueryProgress(msgspec.Struct, frozen=True):
    """One report. `progress` is Spark's StreamingQueryProgress, unchanged."""

    query: str
    run: str
    name: str | None = None
    pipeline: str | None = None
    state: Literal["running", "stopped", "failed"] = "running"
    error: str | None = None
    progress: dict[str, Any] | None = None
    tables: dict[str, str] = {}
    """Where the pipeline's tables are, by name: a folder, a URI, or a name in a catalog."""
