"""Pages of the console: computes from snapshots the values that each template shows."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from braidlog.client.drivers.contract import Setting
from braidlog.client.errors import ClientError, Refusal, RefusedError
from braidlog.console.actions.access import OPERATIONS, RESOURCES
from braidlog.console.cluster_view import COORDINATORS
from braidlog.console.listener_clients import ClientsOf
from braidlog.console.monitoring.health import Doctor
from braidlog.console.monitoring.spark_pipelines import graph
from braidlog.console.monitoring.spark_queries import SparkQueries, figures_of
from braidlog.console.node_client import Node, NodeError, rate
from braidlog.console.registry.schema_registry import Registry
from braidlog.console.rendering import PAGES, Renderer
from braidlog.console.table_sorting import Listing
from braidlog.model.actor import CONSOLE
from braidlog.model.reporting.node_report import EventReport, LagReport, ListenerReport, PartitionReport, Snapshot
from braidlog.registry.registry_state import State, Version

FOUND_MAX: Final = 12
SUBJECTS_MAX: Final = 1000
VERSIONS_MAX: Final = 100
VALUES_MAX: Final = 200
TIMED_MAX: Final = 64
"""Maximum number of partitions whose lag in seconds is computed for a page."""
KEY_BYTES_MAX: Final = 4096
TOPIC_COLUMNS: Final = ("topic", "records", "records_per_second", "lag", "size_bytes", "partitions")
GROUP_COLUMNS: Final = ("group", "kind", "state", "members", "lag")


class ListenerRow(NamedTuple):
    report: ListenerReport
    requests: int
    requests_per_second: float
    bytes_in_per_second: float
    bytes_out_per_second: float


class TopicRow(NamedTuple):
    topic: str
    partitions: int
    records: int
    size_bytes: int
    records_per_second: float
    lag: int | None
    """Lag of the group furthest behind; None if no group reads the topic."""
    faults: list[str]


class GroupRow(NamedTuple):
    group: str
    kind: str
    state: str
    members: int
    topics: list[str]
    lag: int


class StoryStep(NamedTuple):
    """An event of a partition's history. `seconds`: since the previous event; None if either time is unknown."""

    event: EventReport
    seconds: float | None


class LagRow(NamedTuple):
    report: LagReport
    seconds: float | None


def _by_subject(state: State) -> list[list[Version]]:
    found = (state.versions(subject, deleted=False) for subject in sorted(state.subjects))
    return [each for each in found if each]


class Pages:
    """The pages of this process."""

    def __init__(
        self,
        node: Node,
        clients: ClientsOf,
        registry: Registry,
        doctor: Doctor,
        spark_queries: SparkQueries,
        renderer: Renderer,
    ) -> None:
        self._node = node
        self._clients = clients
        self._registry = registry
        self._own = clients(CONSOLE)
        """Clients of the console itself, for values that every viewer may see."""
        self._doctor = doctor
        self._spark_queries = spark_queries
        self._renderer = renderer

    async def overview(self, request: Request) -> Response:
        snapshot = await self._node.cluster.now()
        health = await self._doctor.look()
        before = self._node.cluster.earlier()
        rows = listener_rows(snapshot, before)
        return self._renderer.page(
            request, "overview.html", s=snapshot, health=health, rows=rows, rates=rates(snapshot, before)
        )

    async def topics(self, request: Request) -> Response:
        snapshot = await self._node.cluster.now()
        listing = Listing.of(request, TOPIC_COLUMNS)
        rows, hidden = listing.shown(topic_rows(snapshot, self._node.cluster.earlier()), "topic")
        left_out = snapshot.partitions_left_out
        return self._renderer.page(
            request, "topics.html", rows=rows, hidden=hidden, listing=listing, left_out=left_out, s=snapshot
        )

    async def topic(self, request: Request) -> Response:
        name = request.path_params["topic"]
        snapshot, partitions = await self._found("partitions", "topic", name)
        if not partitions:
            return await self._unreported(request, name)
        lags = [each for each in snapshot.lags if each.topic == name]
        host = self._node.welcome.listeners.get("kafka", "")
        table = next((each for each in snapshot.tables if each.topic == name), None)
        settings = await self._settings_of(request, name)
        return self._renderer.page(
            request,
            "topic.html",
            topic=name,
            partitions=partitions,
            lags=lags,
            server=host,
            settings=settings,
            table=table,
        )

    async def _unreported(self, request: Request, topic: str) -> Response:
        try:
            await self._own.admin.partition_count(topic)
        except RefusedError as error:
            if error.reason is Refusal.TOPIC_NOT_FOUND:
                return self._missing(request, f"Topic not found: {topic}.")
            raise
        raise NodeError(f"no node reports the partitions of topic {topic!r}; retry")

    async def _settings_of(self, request: Request, topic: str) -> list[Setting]:
        """Return the settings of a topic; empty for a deleted or internal topic, and for a live update."""
        if "hx-request" in request.headers:
            return []
        try:
            found = await self._clients(request.scope["principal"]).admin.topic_settings(topic)
        except ClientError:
            return []
        return sorted(found, key=lambda each: (each.is_default, each.name))

    async def groups(self, request: Request) -> Response:
        listing = Listing.of(request, GROUP_COLUMNS)
        snapshot = await self._node.cluster.now()
        shown, _ = listing._replace(internal=True).shown(group_rows(snapshot), "group")
        return self._renderer.page(request, "groups.html", rows=shown, listing=listing, s=snapshot)

    async def schemas(self, request: Request) -> Response:
        """Show subjects with their last version."""
        state = await self._registry.fresh()
        rows = [(each[-1], len(each), state.level(each[-1].subject)) for each in _by_subject(state)]
        return self._renderer.page(request, "schemas.html", rows=rows[:SUBJECTS_MAX], left_out=len(rows[SUBJECTS_MAX:]))

    async def subject(self, request: Request) -> Response:
        """Show every version of a subject, newest first."""
        name, state = request.path_params["subject"], await self._registry.fresh()
        versions = state.versions(name, deleted=False)
        if not versions:
            return self._missing(request, f"Subject not found: {name}.")
        return self._renderer.page(
            request, "subject.html", subject=name, level=state.level(name), versions=versions[::-1][:VERSIONS_MAX]
        )

    async def group(self, request: Request) -> Response:
        name = request.path_params["group"]
        snapshot, found = await self._found("groups", "group", name)
        if not found and COORDINATORS in snapshot.warnings:
            raise NodeError(f"the coordinator of group {name!r} may be unavailable: {snapshot.warnings[COORDINATORS]}")
        if not found:
            return self._missing(request, f"Group not found: {name}.")
        rows = await self.lag_rows(snapshot, name)
        try:
            members = (await self._clients(request.scope["principal"]).admin.describe_group(name)).members
        except ClientError:
            members = ()  # deleted, or known to another node
        holders = {
            (topic, number): each.member
            for each in members
            for topic, numbers in each.shares.items()
            for number in numbers
        }
        return self._renderer.page(request, "group.html", group=found[0], rows=rows, members=members, holders=holders)

    async def _found(self, rows: str, field: str, name: str) -> tuple[Snapshot, list[Any]]:
        """Return the rows with this name, from a newer snapshot if the object was just created."""
        snapshot = await self._node.cluster.now()
        if not any(getattr(each, field) == name for each in getattr(snapshot, rows)):
            snapshot = await self._node.cluster.later(snapshot)
        return snapshot, [each for each in getattr(snapshot, rows) if getattr(each, field) == name]

    async def lag_rows(self, snapshot: Snapshot, group: str) -> list[LagRow]:
        """Return the lag of a group per partition in records, and in time: the age of its next record."""
        reports = [each for each in snapshot.lags if each.group == group]
        starts = {(each.topic, each.partition): each.start_offset for each in snapshot.partitions}
        rows = []
        for index, each in enumerate(reports):
            seconds: float | None = 0.0
            if each.lag:
                at = max(each.committed or 0, starts.get((each.topic, each.partition), 0))
                seconds = await self._age(snapshot, each, at) if index < TIMED_MAX else None
            rows.append(LagRow(each, seconds))
        return rows

    async def _age(self, snapshot: Snapshot, each: LagReport, offset: int) -> float | None:
        try:
            time_ms = await self._own.time_of(each.topic, each.partition, offset)
        except ClientError:
            return None  # trimmed since: the next refresh finds another first record
        return None if time_ms is None else max(snapshot.taken_ms - time_ms, 0) / 1000

    async def keys(self, request: Request) -> Response:
        prefix, position = request.query_params.get("prefix", ""), _number(request.query_params.get("position"))
        try:
            found = await self._node.keys(prefix.encode()[:KEY_BYTES_MAX], position)
        except NodeError as error:
            return self._renderer.page(request, "keys.html", prefix=prefix, found=None, kv=None, fault=str(error))
        kv = (await self._node.snapshot()).keyvalue
        return self._renderer.page(request, "keys.html", prefix=prefix, found=found, kv=kv, fault="")

    async def key(self, request: Request) -> Response:
        raw = request.query_params.get("hex", "")
        try:
            key = bytes.fromhex(raw)
        except ValueError:
            key = b""
        if not key:
            return self._missing(request, "Invalid key address; open the key from the list of keys.")
        found = await self._node.keys(key[:KEY_BYTES_MAX], 0)
        kind = next((each.kind for each in found.rows if each.key == key), "")
        store = self._clients(request.scope["principal"]).store
        values: list[tuple[bytes, bytes]] = []
        if kind in ("string", "counter", ""):
            value = await store.get(key)
            if value is None:
                return self._missing(request, "Key not found.")
            kind, values = kind or "string", [(b"", value)]
        elif kind == "list":
            items = await store.lrange(key, 0, VALUES_MAX - 1)
            values = [(str(index).encode(), item) for index, item in enumerate(items)]
        else:
            values = list((await store.hgetall(key)).items())[:VALUES_MAX]
        ttl = await store.ttl(key)
        form = form_value(values[0][1]) if kind == "string" else ("", False)
        return self._renderer.page(
            request, "key.html", key=key, kind=kind, values=values, ttl=ttl, most=VALUES_MAX, form=form
        )

    async def transactions(self, request: Request) -> Response:
        admin = self._clients(request.scope["principal"]).admin
        snapshot, rows = await self._node.cluster.now(), await admin.list_transactions()
        shown = request.query_params.get("id", "")
        found = await admin.describe_transaction(shown) if shown else None
        topic, fault = request.query_params.get("topic", ""), ""
        try:
            producers = await admin.list_producers(topic) if topic else []
        except RefusedError as error:
            producers, fault = [], str(error)
        return self._renderer.page(
            request,
            "transactions.html",
            s=snapshot,
            rows=rows,
            found=found,
            topic=topic,
            producers=producers,
            fault=fault,
        )

    async def access(self, request: Request) -> Response:
        """Show users, rules and quotas, including those of the settings."""
        admin = self._clients(request.scope["principal"]).admin
        try:
            rules, fault = await admin.list_rules(), ""
        except RefusedError as error:
            rules, fault = [], str(error)
        return self._renderer.page(
            request,
            "access.html",
            users=await admin.list_users(),
            tokens=sorted(next((each.value for each in await self._node.settings() if each.name == "auth.tokens"), ())),
            rules=rules,
            rules_fault=fault,
            quotas=await admin.list_quotas(),
            resources=RESOURCES,
            operations=OPERATIONS,
        )

    async def connections(self, request: Request) -> Response:
        return self._renderer.page(request, "connections.html", found=await self._node.connections())

    async def connection(self, request: Request) -> Response:
        number = request.path_params["number"]
        found = await self._node.connections()
        row = next((each for each in found.rows if each.number == number), None)
        if row is None:
            return self._missing(request, f"Connection {number} is closed.")
        return self._renderer.page(request, "connection.html", row=row)

    async def cluster(self, request: Request) -> Response:
        snapshot = await self._node.cluster.now()
        doors = sorted({door for each in snapshot.cluster.nodes for door in each.doors})
        return self._renderer.page(
            request,
            "cluster.html",
            c=snapshot.cluster,
            doors=doors,
            events=await self._node.events(),
            metadata=snapshot.warnings.get("metadata", ""),
        )

    async def partition_story(self, request: Request) -> Response:
        topic, number = request.path_params["topic"], request.path_params["partition"]
        found = await self._node.events(topic, number)
        if not found:
            return self._missing(request, f"No events of partition {topic}/{number}.")
        return self._renderer.page(
            request, "partition_story.html", topic=topic, number=number, steps=story_steps(found)
        )

    async def spark(self, request: Request) -> Response:
        return self._renderer.page(
            request, "spark.html", queries=[figures_of(each) for each in self._spark_queries.queries()]
        )

    async def pipeline(self, request: Request) -> Response:
        name = request.path_params["pipeline"]
        found = self._spark_queries.pipelines.get(name)
        if found is None:
            return self._missing(request, f"Pipeline {name} has not reported since the console started.")
        return self._renderer.page(request, "pipeline.html", pipeline=found, graph=graph(found))

    async def settings(self, request: Request) -> Response:
        return self._renderer.page(request, "settings.html", rows=await self._node.settings())

    async def search(self, request: Request) -> Response:
        """Search pages, topics and groups by name."""
        wanted = request.query_params.get("q", "").strip().lower()
        snapshot = await self._node.cluster.now()
        names = [
            *(("page", path, name) for path, name in PAGES),
            *(("topic", f"/topics/{name}", name) for name in sorted({each.topic for each in snapshot.partitions})),
            *(("group", f"/groups/{each.group}", each.group) for each in snapshot.groups),
        ]
        found = [row for row in names if wanted in row[2].lower()][:FOUND_MAX]
        return self._renderer.fragment("found.html", found=found)

    async def not_found(self, request: Request) -> Response:
        return self._missing(request, f"Page not found: {request.url.path}.")

    def _missing(self, request: Request, sentence: str) -> Response:
        if "hx-request" in request.headers:  # a polling page shows its own message
            return PlainTextResponse(f"{sentence}\n", 404)
        return self._renderer.explain(request, "Not found", sentence, 404)


# -- values --------------------------------------------------------------------------------------------------------


def form_value(value: bytes) -> tuple[str, bool]:
    """Return a value for a form that sends it back unchanged, and whether it is hexadecimal.

    Returns nothing for a value longer than the page shows, so that a form never saves a part of it.
    """
    if len(value) > KEY_BYTES_MAX:
        return "", False
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex(), True
    # Text areas change line ends, and drop a leading one.
    return (value.hex(), True) if "\r" in text or "\0" in text or text.startswith("\n") else (text, False)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 16 else 0


def seconds_between(snapshot: Snapshot, before: Snapshot | None) -> float:
    return 0.0 if before is None else (snapshot.taken_ms - before.taken_ms) / 1000


def rates(snapshot: Snapshot, before: Snapshot | None) -> dict[str, float]:
    """Return records and bytes per second, in and out."""
    seconds = seconds_between(snapshot, before)
    old = before or snapshot

    def moved(report: Snapshot, name: str) -> int:
        return sum(getattr(each, name) for each in report.listeners)

    return {
        "appended": rate(snapshot.records_appended, old.records_appended, seconds),
        "fetched": rate(snapshot.records_fetched, old.records_fetched, seconds),
        "bytes_in": rate(moved(snapshot, "bytes_in"), moved(old, "bytes_in"), seconds),
        "bytes_out": rate(moved(snapshot, "bytes_out"), moved(old, "bytes_out"), seconds),
    }


def story_steps(newest_first: list[EventReport]) -> list[StoryStep]:
    """Return events as a timeline, oldest first."""
    events = newest_first[::-1]
    steps = [StoryStep(events[0], None)] if events else []
    for before, each in pairwise(events):
        is_known = before.time_ms and each.time_ms
        steps.append(StoryStep(each, max(each.time_ms - before.time_ms, 0) / 1000 if is_known else None))
    return steps


def listener_rows(snapshot: Snapshot, before: Snapshot | None) -> list[ListenerRow]:
    seconds = seconds_between(snapshot, before)
    old = {each.dialect: each for each in (before or snapshot).listeners}
    rows = []
    for each in snapshot.listeners:
        was = old.get(each.dialect, each)
        requests = sum(each.requests.values())
        rows.append(
            ListenerRow(
                each,
                requests,
                rate(requests, sum(was.requests.values()), seconds),
                rate(each.bytes_in, was.bytes_in, seconds),
                rate(each.bytes_out, was.bytes_out, seconds),
            )
        )
    return rows


def _by_topic(partitions: Iterable[PartitionReport]) -> Mapping[str, list[PartitionReport]]:
    found: dict[str, list[PartitionReport]] = defaultdict(list)
    for each in partitions:
        found[each.topic].append(each)
    return found


def topic_rows(snapshot: Snapshot, before: Snapshot | None) -> list[TopicRow]:
    seconds = seconds_between(snapshot, before)
    ends = {(each.topic, each.partition): each.high_watermark for each in (before or snapshot).partitions}
    lags: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for lag in snapshot.lags:
        lags[lag.topic][lag.group] += lag.lag
    rows = []
    for topic, partitions in _by_topic(snapshot.partitions).items():
        came = sum(each.high_watermark - ends.get((topic, each.partition), each.high_watermark) for each in partitions)
        rows.append(
            TopicRow(
                topic,
                len(partitions),
                sum(each.high_watermark - each.start_offset for each in partitions),
                sum(each.size_bytes for each in partitions),
                rate(came, 0, seconds),
                max(lags[topic].values()) if topic in lags else None,
                [f"partition {each.partition}: {each.fault}" for each in partitions if each.fault],
            )
        )
    return rows


def group_rows(snapshot: Snapshot) -> list[GroupRow]:
    lags: dict[str, int] = defaultdict(int)
    topics: dict[str, set[str]] = defaultdict(set)
    for each in snapshot.lags:
        lags[each.group] += each.lag
        topics[each.group].add(each.topic)
    return [
        GroupRow(each.group, each.kind, each.state, each.members, sorted(topics[each.group]), lags[each.group])
        for each in snapshot.groups
    ]
