"""Groups and transactional ids belong to who used them first, also after a crash; rules and administrators come before."""

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.broker.coordination import coordinators
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import Reason
from braidlog.security import resource_owners
from braidlog.security.authorization import Authorize, Kind, NotAuthorizedError, Operation, Rule
from braidlog.security.resource_owners import UNUSED_MS, AllOwners

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
DELETE, ALTER = Operation.DELETE, Operation.ALTER
GROUP, ID = Kind.GROUP, Kind.TRANSACTIONAL_ID
TOPICS = Rule("*", [READ, WRITE], "*")


def guarded(node: Node, *rules: Rule) -> Authorize:
    authorize = Authorize({}, rules)
    node.run(node.services.coordinators.ensure_shards())
    authorize.own_by_first_use(AllOwners(node.services.coordinators.owners_of))
    return authorize


@pytest.mark.parametrize("rules", [(), (TOPICS,)], ids=["without rules", "with rules"])
@pytest.mark.parametrize(("kind", "use"), [(GROUP, READ), (ID, WRITE)])
def test_the_first_who_uses_it_owns_it(kind: Kind, use: Operation, rules: tuple[Rule, ...]) -> None:
    node = Node()
    authorize = guarded(node, *rules)
    authorize.check("mallory", DESCRIBE, "a", kind)  # asks for the coordinator: no use
    for operation in (DELETE, ALTER):
        with pytest.raises(NotAuthorizedError):
            authorize.check("mallory", operation, "a", kind)
    authorize.check("alice", use, "a", kind)
    for operation in (READ, WRITE, DESCRIBE, DELETE, ALTER):
        authorize.check("alice", operation, "a", kind)
        with pytest.raises(NotAuthorizedError, match="'mallory' may not"):
            authorize.check("mallory", operation, "a", kind)
    assert authorize.visible("mallory", ["a", "b"], kind) == ["b"]


def test_the_owner_is_there_whenever_the_group_is() -> None:
    """Power is cut while a first commit is not synced yet: no state of the disk has the group and not its owner."""
    node = Node()
    node.create("t")
    guarded(node, TOPICS).check("alice", READ, "g", GROUP)
    node.spawn(node.offsets.commit("g", [Commit("t", 0, 0)]))
    seen = set()
    for _, disk in node.disk.crash_states():
        after = node.restarted(disk)
        is_there = "g" in after.groups.names()
        seen.add(is_there)
        assert is_there <= (not guarded(after, TOPICS).is_allowed("mallory", READ, "g", GROUP))
    assert seen == {False, True}
    node.runtime.settle()


def test_what_rules_speak_of_is_not_to_be_had_by_first_use() -> None:
    rules = (
        Rule("root", [Operation.ALL]),
        Rule("billing", [READ], group="billing-*"),
        Rule("*", [READ], group="locked", deny=True),
    )
    authorize = guarded(Node(), *rules)
    for name in ("billing-1", "locked"):
        assert not authorize.is_allowed("mallory", READ, name, GROUP)
    authorize.check("billing", READ, "billing-1", GROUP)
    authorize.check("root", READ, "free", GROUP)
    authorize.check("alice", READ, "free", GROUP)
    authorize.check("root", DELETE, "free", GROUP)
    with pytest.raises(NotAuthorizedError):
        authorize.check("billing", READ, "free", GROUP)


def test_a_name_is_free_again_some_time_after_its_state_is_gone() -> None:
    node = Node()
    node.create("t")
    authorize = guarded(node)
    for name in ("kept", "gone"):
        authorize.check("alice", READ, name, GROUP)
    node.run(node.offsets.commit("kept", [Commit("t", 0, 0)]))
    assert forgotten(node) == 0, "not at once"
    node.clock.advance(UNUSED_MS)
    assert forgotten(node) == 1
    authorize = guarded(node.restarted())
    assert authorize.is_allowed("bob", READ, "gone", GROUP)
    assert not authorize.is_allowed("bob", READ, "kept", GROUP)


def forgotten(node: Node) -> int:
    return sum(node.run(each.owners.forget_unused()) for each in node.services.coordinators.local_coordinators())


def test_nobody_owns_without_end_in_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_owners, "NAMES_PER_PRINCIPAL_MAX", 2)
    monkeypatch.setattr(coordinators, "shard_for_name", lambda _: 0)
    authorize = guarded(Node())

    def use(principal: str, name: str) -> None:
        authorize.check(principal, READ, name, GROUP)

    for name in ("a", "b", "b"):
        use("alice", name)
    with refused_with(Reason.QUOTA_EXCEEDED):
        use("alice", "c")
    use("bob", "c")
