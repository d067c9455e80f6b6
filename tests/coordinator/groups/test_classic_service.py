"""Groups that elect their leader, as a service: waiting, durable before anyone hears of it, and a model of many clients."""

from collections.abc import Generator
from random import Random
from typing import Any

import pytest
from tests.broker.node import Node
from tests.model.manual_world import Job
from tests.refusals import reason_of, refused_with

from braidlog.coordinator.groups.classic_service import ClassicGroups
from braidlog.coordinator.groups.messages import Joined, Joining, MemberIdRequired, State, Synced
from braidlog.coordinator.groups.service import GroupKind
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.testing.disk import SimulatedDisk
from braidlog.wire.kafka.consumer import ConsumerMetadata

DELAY_MS = 300
SESSION_MS = 2_000
PATIENCE_MS = 5_000


def classic(node: Node) -> ClassicGroups:
    return node.groups.classic


def asking(member: str = "", **more: Any) -> Joining:
    return Joining(
        **{
            "member": member,
            "client": "c",
            "host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": PATIENCE_MS,
            "protocol_type": "consumer",
            "protocols": [("range", b"a")],
            **more,
        }
    )


def join(node: Node, member: str = "", **more: Any) -> Joined:
    job = node.spawn(classic(node).join("g", asking(member, **more)))
    node.runtime.advance(DELAY_MS)
    return job.result()


def alone(node: Node, share: bytes = b"all", **more: Any) -> Joined:
    """One member, its work assigned."""
    told = join(node, **more)
    node.run(
        classic(node).sync("g", told.member, told.generation, [(told.member, share)], instance=more.get("instance"))
    )
    return told


def test_members_meet_sync_and_leave(node: Node) -> None:
    one = node.spawn(classic(node).join("g", asking()))
    two = node.spawn(classic(node).join("g", asking()))
    node.runtime.settle()
    assert not one.is_done
    node.runtime.advance(2 * DELAY_MS)
    told = [one.result(), two.result()]
    assert [t.generation for t in told] == [1, 1]
    waiting = node.spawn(classic(node).sync("g", told[1].member, 1, []))
    node.runtime.settle()
    assert not waiting.is_done
    shares = [(told[0].member, b"x"), (told[1].member, b"y")]
    assert node.run(classic(node).sync("g", told[0].member, 1, shares)).assignment == b"x"
    assert waiting.result().assignment == b"y"
    classic(node).heartbeat("g", told[0].member, 1)
    left = node.run(classic(node).leave("g", [(told[0].member, None), ("nobody", None)]))
    assert left[0] is None
    assert left[1] is not None
    assert left[1].reason is Reason.MEMBER_NOT_FOUND
    with refused_with(Reason.REBALANCE_IN_PROGRESS):
        classic(node).heartbeat("g", told[1].member, 1)


def test_a_generation_and_an_assignment_are_durable_before_anyone_hears_of_them(node: Node) -> None:
    with node.runtime.holding_syncs():
        joining = node.spawn(classic(node).join("g", asking()))
        node.runtime.advance(DELAY_MS)
        assert not joining.is_done
        node.runtime.sync()
        told = joining.result()
        syncing = node.spawn(classic(node).sync("g", told.member, 1, [(told.member, b"x")]))
        again = node.spawn(classic(node).sync("g", told.member, 1, []))
        node.runtime.settle()
        assert not syncing.is_done
        assert not again.is_done, "asking again must not tell it early either"
    assert syncing.result().assignment == again.result().assignment == b"x"
    after = node.restarted()
    assert after.run(classic(after).sync("g", told.member, 1, [(told.member, b"other")])).assignment == b"x"


def test_what_cannot_be_kept_did_not_happen(node: Node) -> None:
    told = alone(node)
    waiting = node.spawn(classic(node).join("g", asking()))
    node.disk.fail_at = {len(node.disk.operations) + 1: 28}
    with pytest.raises(StorageFault):
        node.run(classic(node).join("g", asking(told.member)))
    with pytest.raises(StorageFault):
        waiting.result()
    classic(node).heartbeat("g", told.member, told.generation)
    view = node.groups.describe("g")
    assert (view.state, view.generation, [m.member for m in view.members]) == (State.STABLE, 1, [told.member])
    node.disk.fail_at = {}
    assert join(node, told.member).generation == 2


def test_a_first_generation_that_cannot_be_kept_leaves_no_group(node: Node) -> None:
    joining = node.spawn(classic(node).join("g", asking()))
    node.disk.fail_at = {len(node.disk.operations) + 1: 28}
    node.runtime.advance(DELAY_MS)
    with pytest.raises(StorageFault):
        joining.result()
    assert node.groups.names() == []


def test_a_client_that_goes_away_before_it_knows_its_id_is_out_at_the_next_look(node: Node) -> None:
    told = alone(node)
    node.spawn(classic(node).join("g", asking())).cancel()
    again = node.spawn(classic(node).join("g", asking(told.member)))
    assert not again.is_done
    node.run(node.groups.expire())
    assert again.result().generation == 2
    assert [member for member, _, _ in again.result().members] == [told.member]


def test_an_id_that_was_handed_out_and_never_used_leaves_no_trace(node: Node) -> None:
    with pytest.raises(MemberIdRequired) as caught:
        node.run(classic(node).join("g", asking(id_required=True)))
    assert caught.value.member.startswith("c-")
    assert node.groups.names() == ["g"]
    node.runtime.advance(SESSION_MS + 1)
    node.run(node.groups.expire())
    assert node.groups.names() == []


def test_bad_requests(node: Node) -> None:
    bad: list[dict[str, Any]] = [
        {"session_timeout_ms": 99},
        {"session_timeout_ms": 2_000_000},
        {"rebalance_timeout_ms": -1},
    ]
    for wrong in bad:
        assert reason_of(node.run, classic(node).join("g", asking(**wrong))) is Reason.INVALID_SESSION_TIMEOUT
    assert reason_of(node.run, classic(node).join("", asking())) is Reason.INVALID_GROUP
    assert reason_of(node.run, classic(node).join("g", asking("m"))) is Reason.MEMBER_NOT_FOUND
    assert reason_of(node.run, classic(node).sync("g", "m", 1, [])) is Reason.MEMBER_NOT_FOUND
    with pytest.raises(BrokerError):
        classic(node).heartbeat("g", "m", 1)
    assert [e.reason for e in node.run(classic(node).leave("g", [("m", None)])) if e] == [Reason.MEMBER_NOT_FOUND]
    assert node.groups.names() == []


# -- both kinds ----------------------------------------------------------------------------------------------


def test_a_group_with_members_is_not_used_in_the_other_way(node: Node) -> None:
    groups = node.groups
    node.run(groups.join("g", "m", ["a"]))
    assert reason_of(node.run, classic(node).join("g", asking())) is Reason.WRONG_GROUP_KIND
    assert reason_of(node.run, classic(node).commit("g", "", -1, [Commit("a", 0, 1)])) is Reason.WRONG_GROUP_KIND
    node.run(groups.leave("g", "m"))
    told = alone(node)
    assert told.generation == 3, "the generation goes on: 1 join, 2 leave"
    assert reason_of(node.run, groups.join("g", "m", ["a"])) is Reason.WRONG_GROUP_KIND
    with refused_with(Reason.WRONG_GROUP_KIND):
        groups.heartbeat("g", "m", 3)
    assert node.restarted().groups.describe("g").kind is GroupKind.CLASSIC
    node.run(classic(node).leave("g", [(told.member, None)]))
    assert node.run(groups.join("g", "m", ["a"])).generation == 5
    for each in (node, node.restarted()):
        assert each.groups.describe("g").kind is GroupKind.ASSIGNED
        assert each.groups.heartbeat("g", "m", 5).assignment == {"a": [0, 1, 2, 3]}


def test_a_change_of_kind_that_does_not_come_about_leaves_the_group_as_it_was(node: Node) -> None:
    groups = node.groups
    node.run(groups.register("g"))
    with pytest.raises(MemberIdRequired):
        node.run(classic(node).join("g", asking(id_required=True)))
    node.runtime.advance(SESSION_MS + 1)
    node.run(groups.expire())
    assert groups.describe("g").kind is GroupKind.ASSIGNED
    assert node.restarted().groups.describe("g").kind is GroupKind.ASSIGNED


def test_list_describe_lag_delete(node: Node) -> None:
    groups = node.groups
    node.append("a", b"1", b"2", b"3")
    told = alone(node, instance="i")
    node.run(classic(node).commit("g", told.member, 1, [Commit("a", 0, 1, "note", 7)], instance="i"))
    view = groups.describe("g")
    assert (view.state, view.protocol_type, view.protocol) == (State.STABLE, "consumer", "range")
    (member,) = view.members
    assert (member.instance, member.client, member.host) == ("i", "c", "/127.0.0.1")
    assert (member.metadata, member.assignment) == (b"a", b"all")
    assert [(row.partition, row.committed, row.lag, row.member) for row in node.run(groups.lag("g"))] == [
        (0, 1, 2, None)
    ]
    committed = node.offsets.committed("g", "a", 0)
    assert committed is not None
    assert (committed.metadata, committed.leader_epoch) == ("note", 7)
    assert reason_of(node.run, groups.delete("g")) is Reason.GROUP_NOT_EMPTY
    node.run(classic(node).leave("g", [("", "i")]))
    node.run(groups.delete("g"))
    assert node.restarted().groups.names() == groups.names() == []
    node.run(node.offsets.commit("only-commits", [Commit("a", 0, 0)]))
    assert groups.describe("only-commits").state is State.EMPTY
    with pytest.raises(BrokerError):
        groups.describe("nope")


def test_commits_without_membership_are_for_empty_groups(node: Node) -> None:
    commit = [Commit("a", 0, 1)]
    node.run(classic(node).commit("g", "", -1, commit))
    told = alone(node)
    assert reason_of(node.run, classic(node).commit("g", "", -1, commit)) is Reason.MEMBER_NOT_FOUND
    assert reason_of(node.run, classic(node).commit("g", told.member, 0, commit)) is Reason.STALE_GENERATION
    assert reason_of(node.run, classic(node).commit("other", "m", 1, commit)) is Reason.MEMBER_NOT_FOUND
    node.run(classic(node).commit("g", told.member, 1, commit))
    classic(node).check_transactional("g", "", -1, None)
    with pytest.raises(BrokerError):
        classic(node).check_transactional("g", told.member, 0, None)
    node.run(classic(node).leave("g", [(told.member, None)]))
    node.run(classic(node).commit("g", "", -1, commit))


class PlainMetadata(ConsumerMetadata):
    """A subscription is the name of a topic."""

    def subscription(self, data: bytes) -> tuple[list[str], dict[str, set[int]]]:
        return [data.decode()], {}


def test_a_group_without_commits_is_behind_by_what_there_is_to_read(node: Node) -> None:
    groups = node.groups
    node.coordinator("g").groups._metadata = PlainMetadata()
    node.append("a", b"1", b"2", b"3")
    alone(node)
    assert [(row.topic, row.committed, row.lag) for row in node.run(groups.lag("g")) if row.end_offset] == [
        ("a", None, 3)
    ]
    node.run(node.services.trim.delete_before("a", 0, 2))
    assert sum(row.lag for row in node.run(groups.lag("g"))) == 1, "what is gone cannot be read"


def test_deleting_commits(node: Node) -> None:
    groups = node.groups
    node.create("b", 1)

    node.coordinator("g").groups._metadata = PlainMetadata()
    told = alone(node)
    commits = [Commit("a", 0, 1), Commit("b", 0, 1)]
    node.run(classic(node).commit("g", told.member, 1, commits))
    assert node.run(groups.delete_commits("g", [("a", 0), ("b", 0), ("b", 7)])) == [("a", 0)]
    assert node.offsets.group_offsets("g").keys() == {("a", 0)}
    node.run(classic(node).leave("g", [(told.member, None)]))
    assert node.run(groups.delete_commits("g", [("a", 0)])) == []
    assert node.restarted().offsets.group_offsets("g") == {}
    assert reason_of(node.run, groups.delete_commits("nope", [("a", 0)])) is Reason.GROUP_NOT_FOUND
    node.run(groups.join("assigned", "m", ["a"]))
    node.run(node.offsets.commit("assigned", commits))
    assert node.run(groups.delete_commits("assigned", [("a", 0), ("b", 0)])) == [("a", 0)]


def test_what_nobody_uses_is_forgotten(node: Node) -> None:
    groups = node.groups
    week = 7 * 24 * 3600 * 1000
    node.run(node.offsets.commit("old", [Commit("a", 0, 1), Commit("a", 1, 1)]))
    node.run(groups.register("empty"))
    told = alone(node)
    node.run(classic(node).commit("g", told.member, 1, [Commit("a", 0, 1)]))
    assert node.run(groups.forget_unused(week)) == []
    node.clock.advance(week)
    node.run(node.offsets.commit("old", [Commit("a", 1, 2)]))
    node.clock.advance(1)
    assert node.run(groups.forget_unused(-1)) == []
    assert node.run(groups.forget_unused(week)) == ["empty"], "g has a member"
    assert node.offsets.group_offsets("old").keys() == {("a", 1)}, "commits go one by one"
    node.run(classic(node).leave("g", [(told.member, None)]))
    assert node.run(groups.forget_unused(week)) == [], "it has been empty for a moment only"
    node.clock.advance(week + 1)
    assert node.run(groups.forget_unused(week)) == ["g", "old"]
    assert node.restarted().groups.names() == groups.names() == []


# -- the model -----------------------------------------------------------------------------------------------

Wish = Generator[Any, Any, None]


class Client:
    """A consumer that does what consumers do; what it waits for is a job of the world's."""

    def __init__(self, number: int, rng: Random) -> None:
        self.instance = f"static{number}" if number % 3 == 0 else None
        self.rng = rng
        self.member = ""
        self.told: Joined | None = None
        self.share: bytes | None = None
        self.job: Job[Any] | None = None
        self.waits_since = 0
        self.metadata = b"0"
        self.zeal = 0.05 if number == 1 else 0.95
        self.patience_ms = PATIENCE_MS if number < 3 else SESSION_MS // 2

    def forget(self) -> None:
        self.member, self.told, self.share = "", None, None

    def drop(self) -> None:
        """The connection is lost."""
        if self.job is not None:
            self.job.cancel()
        self.job = None


class Simulation:
    """Clients that join, sync, beat, commit, vanish and come back; a node that is killed and cut off from power.

    Held at every step: at most one assignment per generation, and every member of it is told its own part; no generation
    goes back behind what was told; nobody waits longer than two rebalances; no commit of an old generation is taken.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.node = Node(rng=self.rng)
        self.node.create("a", 1)
        self.clients = [Client(number, self.rng) for number in range(6)]
        self.assignments: dict[int, dict[str, bytes]] = {}
        self.leaders: dict[int, str] = {}
        self.told = 0
        self.generations = self.restarts = self.fenced = self.shares = self.waits = 0

    def step(self) -> None:
        rng = self.rng
        for client in self.clients:
            self.collect(client)
        client = rng.choice(self.clients)
        kind = rng.randrange(100)
        if client.job is not None and kind < 90:
            if kind < 4:
                client.drop()
        elif kind < 70:
            self.go_on(client)
        elif kind < 74:
            client.forget()  # it crashed, and begins anew
        elif kind < 78 and client.member:
            instance = client.instance
            self.attempt(lambda: self.node.run(self.classic.leave("g", [(client.member, instance)])))
            client.forget()
        elif kind < 80:
            self.restart()
        elif kind < 84:
            self.node.runtime.advance(SESSION_MS + 1)
        self.node.runtime.advance(rng.choice([1, 10, 100]))
        self.node.run(self.node.groups.expire())
        self.check()

    @property
    def classic(self) -> ClassicGroups:
        return self.node.groups.classic

    def go_on(self, client: Client) -> None:
        """Do what comes next, as a client's library does."""
        if client.told is None or self.rng.random() < 0.05:
            client.metadata = b"%d" % self.rng.randrange(3)
            self.begin(client, self.join(client))
        elif client.share is None or self.rng.random() < 0.1:
            if self.rng.random() < client.zeal:
                self.begin(client, self.sync(client, client.told))
            else:
                self.beat(client, client.told)  # it lives, but does not do its part
        elif self.rng.random() < 0.5:
            self.beat(client, client.told)
        else:
            self.commit(client, client.told)

    def begin(self, client: Client, coroutine: Any) -> None:
        client.job, client.waits_since = self.node.spawn(coroutine), self.node.clock.now_ms()
        self.collect(client)

    async def join(self, client: Client) -> Joined:
        asked = asking(
            client.member,
            instance=client.instance,
            protocols=[("range", client.metadata), ("sticky", b"")],
            rebalance_timeout_ms=client.patience_ms,
            id_required=self.rng.random() < 0.7,
            knows_skipping=True,
        )
        return await self.classic.join("g", asked)

    async def sync(self, client: Client, told: Joined) -> Synced:
        shares: list[tuple[str, bytes]] = []
        if told.leader == told.member and not told.skip_assignment:
            shares = [(member, b"%d" % self.rng.randrange(10**9)) for member, _, _ in told.members]
        return await self.classic.sync("g", told.member, told.generation, shares, instance=client.instance)

    def collect(self, client: Client) -> None:
        job = client.job
        if job is None or not job.is_done:
            return
        client.job = None
        self.waits += self.node.clock.now_ms() > client.waits_since
        try:
            answer = job.result()
        except MemberIdRequired as required:
            client.member = required.member
        except BrokerError as error:
            self.refused(client, error)
        else:
            self.note(client, answer)

    def note(self, client: Client, answer: Joined | Synced) -> None:
        if isinstance(answer, Joined):
            client.member, client.told, client.share = answer.member, answer, None
            self.told = max(self.told, answer.generation)
            if answer.members and not answer.skip_assignment:
                leader = self.leaders.setdefault(answer.generation, answer.member)
                assert leader == answer.member, "two were told that they lead one generation"
            return
        assert client.told is not None
        client.share = answer.assignment
        self.shares += bool(answer.assignment)
        known = self.assignments.setdefault(client.told.generation, {})
        # A static member's share goes with its instance through all its lives.
        who = client.instance or client.member
        assert known.setdefault(who, answer.assignment) == answer.assignment, "two assignments of one generation"

    def refused(self, client: Client, error: BrokerError) -> None:
        if error.reason is Reason.REBALANCE_IN_PROGRESS:
            client.told = client.share = None
        elif error.reason in (Reason.MEMBER_NOT_FOUND, Reason.FENCED_INSTANCE, Reason.STALE_GENERATION):
            self.fenced += 1
            client.forget()
        else:
            raise error

    def attempt(self, call: Any) -> bool:
        try:
            call()
        except BrokerError:
            return False
        return True

    def beat(self, client: Client, told: Joined) -> None:
        try:
            self.classic.heartbeat("g", told.member, told.generation, client.instance)
        except BrokerError as error:
            self.refused(client, error)

    def commit(self, client: Client, told: Joined) -> None:
        present = self.node.groups.describe("g")
        commit = self.classic.commit("g", told.member, told.generation, [Commit("a", 0, 1)], instance=client.instance)
        if self.attempt(lambda: self.node.run(commit)):
            assert told.generation == present.generation, "a zombie committed"
            assert told.member in {m.member for m in present.members}, "a stranger committed"

    def restart(self) -> None:
        self.restarts += 1
        disk: SimulatedDisk = self.node.disk.after_kill()
        if self.rng.random() < 0.5:
            disk = self.rng.choice(list(self.node.disk.crash_states(limit=6, rng=self.rng)))[1]
        for client in self.clients:
            client.drop()
        self.node = Node(disk, self.node.clock, rng=self.rng)

    def check(self) -> None:
        if "g" not in self.node.groups.names():
            assert self.told == 0
            return
        view = self.node.groups.describe("g")
        assert view.generation >= self.told, "a generation went back behind what was told"
        self.generations = max(self.generations, view.generation)
        now_ms = self.node.clock.now_ms()
        for client in self.clients:
            waits_ms = now_ms - client.waits_since
            assert client.job is None or waits_ms <= 2 * PATIENCE_MS + SESSION_MS, "somebody waits for ever"
        instances = [m.instance for m in view.members if m.instance is not None]
        assert len(set(instances)) == len(instances)


@pytest.mark.parametrize("seed", range(8))
def test_clients_against_the_model(seed: int) -> None:
    model = Simulation(seed)
    steps = 0
    while model.generations < 150:
        try:
            model.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed} step {steps}: {error}") from error
        steps += 1
        assert steps < 20_000, f"seed {seed}: {model.generations} generations in {steps} steps"
    print(
        f"seed {seed}: {steps} steps, {model.generations} generations, {model.shares} shares, {model.waits} waits, "
        f"{model.restarts} restarts, {model.fenced} fenced"
    )
    assert model.shares > 50
    assert model.waits > 50
    assert model.restarts > 5
    assert model.fenced > 5
