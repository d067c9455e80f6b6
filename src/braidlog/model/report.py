"""What a node tells about itself: the words between the data process and its console.

Knows: questions and answers, as lines of JSON over a socket that nobody else has. Refuses to know: who computes them, who looks.
Invariant: every answer is bounded: where there could be more rows than `*_MAX`, the answer says how many were left out.

    console → node   {"id": 7, "ask": "snapshot"}
    node → console   {"id": 7, "answer": {…}}          or   {"id": 7, "error": "…"}
    node → console   {"id": 8, "event": {…}}           a watched connection spoke; ends with "answer"
"""

from typing import Any, Final, Literal

import msgspec

from braidlog.model.clock import BUCKETS

ADMIN_PORT: Final = 9644
"""Of the console, unless `admin.port` says otherwise."""
REGISTRY_PORT: Final = 8081
"""Of the schema registry, unless `registry.port` says otherwise."""
LOCAL_REGISTRY_URL: Final = f"http://127.0.0.1:{REGISTRY_PORT}"
LOCAL_ADMIN_URL: Final = f"http://127.0.0.1:{ADMIN_PORT}"
LINE_BYTES_MAX: Final = 32 * 1024 * 1024
PARTITIONS_MAX: Final = 10_000
LAGS_MAX: Final = 10_000
CONNECTIONS_MAX: Final = 1_000
KEYS_MAX: Final = 200
KEYS_LOOKED_AT_MAX: Final = 20_000
WATCHED_BYTES_MAX: Final = 256 * 1024
"""Of one watched piece; of longer ones the console sees that they were too long."""

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
"""What a node's console is called where doors are told apart."""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    ask: Ask
    connection: int = 0
    """For `watch` a connection's number; for `unwatch` the id of the question that began it."""
    prefix: bytes = b""
    position: int = 0
    topic: str = ""
    """For `events`: of this partition of it only."""
    partition: int = -1
    node: int = NOBODY  # for `snapshot` and `keys`: of this other node
    entries: list[tuple[bytes, bytes | None]] = []
    """For `append_schemas`, at `position` of the topic with the id `topic`; `schemas` are read from there."""
    payload: bytes = b""  # for `compare_schemas`: the task
    principal: str = ""
    """For `may`: who asks, "" for nobody, with a token or a password, from an address, to do what with which topics."""
    password: str = ""
    address: str = ""
    """Of the client or the browser, also for `sign_in` and `audit`."""
    wishes: list[tuple[str, str | None]] = []
    words: str = ""
    """For `audit`: what was done."""
    door: str = ""
    """For `audit`: by which door it was done. For `may`, `DOOR`: the name was proved when it signed in there."""


class SchemaPage(msgspec.Struct, frozen=True):
    """Records of the schemas' log. `begin` is not where it was asked for if the topic is another one by now, or its
    start has moved."""

    topic_id: str
    begin: int
    next_offset: int
    end: int
    entries: list[tuple[bytes, bytes | None]]


class Permission(msgspec.Struct, frozen=True):
    """`is_known`: the proof holds, or none is needed. `allowed`: each wish in turn. `principal`: whose name is proved."""

    is_known: bool
    allowed: list[bool]
    principal: str = ""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    answer: Any = None
    error: str | None = None
    reason: str = ""
    """Of an error: the name of its `Reason`."""
    event: Any = None


class Welcome(msgspec.Struct, frozen=True):
    """The first line: all that the console has to know of its node. It holds secrets, and is never shown."""

    node: str
    version: str
    data_dir: str
    started_ms: int
    topics_url: str
    keys_url: str
    token_hash: str
    """SHA-256 of the admin token in hex; "" for none."""
    hosts: list[str]
    """Names by which browsers may call the console, beside addresses and localhost."""
    secret: str
    """Signs cookies: it outlives a console that is started again."""
    disk_free_bytes_min: int
    log_format: str
    log_level: str
    listeners: dict[str, str] = {}
    """Dialect → URL, for commands that a person may copy."""
    has_pages: bool = True
    """Without them there is what machines ask for: health, metrics, schemas."""
    door_secret: str = ""
    """Makes tokens for the private doors: for the console itself, and for who has signed in (`door_tokens.py`)."""
    sign_in: bool = False
    """Whether everyone has to sign in, as the node's users and tokens."""
    has_principals: bool = False
    """Whether there is anybody who could."""
    read_only: bool = False
    """Whether nothing can be changed here."""
    tls_cert: str = ""
    tls_key: str = ""


class Roles(msgspec.Struct, frozen=True):
    """What the node's rules let somebody do in general; single requests are judged by themselves."""

    view: bool = False
    operate: bool = False
    administer: bool = False


class ListenerReport(msgspec.Struct, frozen=True):
    """One port. Counts are since the node started."""

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
    """By operation: a histogram (`measure.py`) over one request in `sampled`."""
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
    """Why it is offline or takes no writes; "" if it serves."""
    is_offline: bool = False
    is_led: bool = False
    """Whether the node that reports it leads it."""


class LagReport(msgspec.Struct, frozen=True):
    """How far a group is behind in one partition that it reads or has committed to. `committed` is None before the first commit;
    `end_offset` is `UNKNOWN_END` of a partition that has no replica on the node."""

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
    slots_led: int = 0
    """By a node of a cluster."""
    differences: int = 0
    """Comparisons in which a replica here was not what its leader has."""


class ProcessReport(msgspec.Struct, frozen=True):
    pid: int
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    open_files_max: int
    loop_lag_seconds: float
    """How late the loop was at its last timer."""


class WorkerReport(msgspec.Struct, frozen=True):
    """The process beside the node that computes for it."""

    is_running: bool
    jobs: list[int]
    """Done, by how long each took."""
    jobs_seconds_total: float
    waiting: int
    waiting_bytes: int
    failed: int
    """Not answered, refused, or begun too late."""
    starts: int


class ScrubReport(msgspec.Struct, frozen=True):
    """The rounds in which stored segments are read again. Counts are since the node started."""

    read_bytes: int
    damages: int
    """Places that were found damaged; the partition has looked itself."""
    rounds: int
    partitions_left: int
    """Of the round under way; 0 between two rounds."""


class TableState(msgspec.Struct, frozen=True):
    """A topic's table, as the node knows it that turns the partitions it leads."""

    topic: str
    form: str
    offsets: dict[int, int] = {}
    """Of each partition: all below are rows."""
    rows: int = 0
    bytes: int = 0
    files: int = 0
    metadata: str = ""
    """Where its newest metadata file was."""
    committed_ms: int = 0
    """When it was last changed; 0: never."""
    lag: int = 0
    """Offsets of partitions led here that are no rows yet."""
    lag_bytes: int = 0
    """About how many bytes of the log those are."""
    undecoded: int = 0
    """Rows whose value is none of the form: its columns are null."""
    error: str = ""
    """Why it is not written; empty if it is."""


class StateReport(msgspec.Struct, frozen=True):
    """How much the node keeps of one kind, and how much it may."""

    kind: str
    used: int
    limit: int


class NodeReport(msgspec.Struct, frozen=True):
    """A node of the cluster. `state`: alive, fenced or draining; `doors`: its addresses. `leads`, `holds`, `in_sync` count
    partitions; `behind`: the records that it lacks of those that are led by the node that tells; `coordinates`: how many shards
    of groups and transactions."""

    node: int
    state: str
    rack: str
    doors: dict[str, str]
    leads: int
    holds: int
    in_sync: int
    behind: int = 0
    coordinates: int = 0


class WeakPartition(msgspec.Struct, frozen=True):
    """A partition that has no leader, or fewer in sync than replicas."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    min_in_sync: int


class EtcdReport(msgspec.Struct, frozen=True):
    """Where the metadata of several nodes is. A node that is alone has its own, which is always there."""

    is_up: bool = True
    outages: int = 0
    seconds: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    """Of a request to it: a histogram."""
    seconds_total: float = 0.0


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as this node sees it; `under_replicated`, `below_factor` and `below_min` count what it leads."""

    is_alone: bool
    own: int
    controller: int
    nodes: list[NodeReport]
    partitions: int
    under_replicated: int
    below_factor: int
    """Partitions with fewer replicas than their topic's replication factor."""
    below_min: int
    leaderless: int
    weak_slots: int
    """Of `under_replicated`, those that hold keys."""
    weak: list[WeakPartition]
    weak_left_out: int
    leader_changes: dict[str, int]
    """By cause, since the node started."""
    forwarded: list[tuple[str, int, int]]
    """What was called, the node that was asked, how often since this one started."""
    etcd: EtcdReport


class EventReport(msgspec.Struct, frozen=True):
    """Something that happened. `is_turn`: another leader epoch began."""

    seq: int
    index: int
    time_ms: int
    event: str
    topic: str
    partition: int
    is_turn: bool
    words: str


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions, and how far groups are behind in them."""

    partitions: list[PartitionReport]
    lags: list[LagReport]


class NodeLog(LogReport, frozen=True, kw_only=True):
    """What one node of several adds to what a cluster holds: the partitions here, the groups that it coordinates."""

    groups: list[GroupReport]
    shards: tuple[int, int] = (0, 0)
    """How many shards of coordinators this node serves, of how many; of 0 before the first group."""


class Snapshot(NodeLog, frozen=True, kw_only=True):
    """A node at one moment."""

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
    """Because nobody uses them."""
    lags_left_out: int
    keyvalue: KeyValueReport
    process: ProcessReport
    worker: WorkerReport
    """Of what clients wait for."""
    upkeep: WorkerReport
    """Of compaction and scrubbing."""
    table_workers: list[WorkerReport]
    """Of turning segments into rows: the first, and those that help when it is late."""
    tables: list[TableState]
    scrub: ScrubReport
    state: list[StateReport]
    state_bytes: int
    state_bytes_max: int
    cluster: ClusterReport
    warnings: dict[str, str] = {}
    """What is wrong while clients are served all the same, by the name of its check: a cluster's metadata, the node's clock."""
    silent: dict[int, str] = {}
    """Other nodes that did not answer the console, and why: what they alone hold is missing here."""
    set_aside: dict[str, int] = {}
    """By the reason why: copies and topics in the data folder that are out of the way until a person removes them."""


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
    """One thing that was looked at, and what is wrong with it."""

    name: str
    ok: bool
    reason: str = ""


class NodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself to who runs it. Bytes of the disk are -1 if it did not tell. Settings are without secrets; these
    and `stacks`, by thread and task, are there only if they were asked for."""

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
    """Keys that begin as asked. `next_position` goes on where this ended; None at the end. Keys that come and go meanwhile may
    be missed: nothing is held for who looks."""

    rows: list[KeyReport]
    next_position: int | None
    keys: int


class WatchedPiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a watched connection did: it spoke (`side`), it ended, or more was said than is sent on (`lost`)."""

    time_ns: int
    side: str = ""
    data: bytes = b""
    lost: int = 0
    is_closed: bool = False
