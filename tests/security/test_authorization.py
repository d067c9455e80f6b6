"""Who may do what: default deny, no leaks, no rule that says more than it says."""

import hashlib
from itertools import product
from typing import Any

import pytest
from tests.refusals import refused_with

from braidlog.model.errors import BrokerError, Reason
from braidlog.security.authorization import ANONYMOUS, Authorize, Kind, Operation, Rule, hash_token

TOKEN = b"correct horse"
HASHES = {"alice": hashlib.sha256(TOKEN).hexdigest(), "bob": hashlib.sha256(b"other").hexdigest()}
SINGLE: list[Operation] = [operation for operation in Operation if operation is not Operation.ALL]


def reason(
    authorize: Authorize, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC
) -> Reason | None:
    try:
        authorize.check(principal, operation, name, kind)
    except BrokerError as error:
        return error.reason
    return None


def test_without_tokens_and_rules_all_is_open() -> None:
    authorize = Authorize({}, [])
    assert all(authorize.is_allowed(ANONYMOUS, operation, topic) for operation, topic in product(SINGLE, ("a", None)))


def test_tokens() -> None:
    authorize = Authorize(HASHES, [])
    assert authorize.authenticate(TOKEN) == "alice"
    assert authorize.authenticate(b"other") == "bob"
    for wrong in (b"", b"correct hors", TOKEN + b"e", hash_token(TOKEN), HASHES["alice"].encode()):
        assert authorize.authenticate(wrong) is None


@pytest.mark.parametrize("hashes", [{"a": "xyz"}, {"a": "ab"}, {"a": ""}, {ANONYMOUS: "0" * 64}, {"*": "0" * 64}])
def test_bad_tokens_are_a_sentence(hashes: dict[str, str]) -> None:
    with refused_with(Reason.INVALID_SETTING):
        Authorize(hashes, [])


@pytest.mark.parametrize(("operation", "topic"), list(product(SINGLE, ("a", None))))
def test_the_matrix_of_nobody_and_of_the_wrong_one(operation: Operation, topic: str | None) -> None:
    authorize = Authorize(HASHES, [Rule("alice", [Operation.ALL])])
    assert reason(authorize, ANONYMOUS, operation, topic) is Reason.NOT_AUTHENTICATED
    assert reason(authorize, "alice", operation, topic) is None
    refusal = reason(authorize, "bob", operation, topic)
    hidden = topic is not None and operation is not Operation.CREATE
    assert refusal is (Reason.TOPIC_NOT_FOUND if hidden else Reason.NOT_AUTHORIZED)


@pytest.mark.parametrize("operation", SINGLE)
def test_a_rule_about_a_topic_gives_no_power_over_the_cluster(operation: Operation) -> None:
    authorize = Authorize(HASHES, [Rule("alice", [Operation.ALL], "orders")])
    general = {Operation.DESCRIBE, Operation.READ, Operation.WRITE}
    assert authorize.is_allowed("alice", operation, None) == (operation in general)
    assert authorize.is_allowed("alice", operation, "orders")
    assert not authorize.is_allowed("alice", operation, "orders2")


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders-x", False),
        ("orders*", "orders-x", True),
        ("orders*", "order", False),
        ("*", "x", True),
        ("a*b", "axb", False),
    ],
)
def test_topics_of_a_rule(pattern: str, topic: str, fits: bool) -> None:
    assert Rule("alice", [Operation.READ], pattern).allows("alice", Operation.READ, topic) is fits


def test_whoever_reads_or_writes_may_know() -> None:
    rule = Rule("alice", [Operation.READ])
    assert rule.allows("alice", Operation.DESCRIBE, "a")
    assert not rule.allows("alice", Operation.WRITE, "a")
    assert not Rule("alice", [Operation.DELETE]).allows("alice", Operation.DESCRIBE, "a")


def test_what_one_may_not_know_is_not_there() -> None:
    authorize = Authorize(HASHES, [Rule("*", [Operation.READ], "public*"), Rule("alice", [Operation.ALL])])
    assert authorize.visible("bob", ["public1", "secret"]) == ["public1"]
    assert authorize.visible("alice", ["public1", "secret"]) == ["public1", "secret"]
    with pytest.raises(BrokerError, match="no topic 'secret'; create it"):
        authorize.check("bob", Operation.READ, "secret")
    assert reason(authorize, "bob", Operation.WRITE, "public1") is Reason.NOT_AUTHORIZED


def test_rules_without_tokens_hold_for_anonymous() -> None:
    authorize = Authorize({}, [Rule(ANONYMOUS, [Operation.READ])])
    assert reason(authorize, ANONYMOUS, Operation.READ, "a") is None
    assert reason(authorize, ANONYMOUS, Operation.WRITE, "a") is Reason.NOT_AUTHORIZED


# -- kinds of resources ------------------------------------------------------------------------------------------

OTHERS = [kind for kind in Kind if kind is not Kind.TOPIC]


@pytest.mark.parametrize("kind", OTHERS)
def test_a_rule_about_topics_says_nothing_of_anything_else(kind: Kind) -> None:
    for rule in (Rule("alice", SINGLE), Rule("alice", [Operation.ALL], "*"), Rule("alice", SINGLE, "*")):
        authorize = Authorize({}, [rule])
        assert not any(authorize.is_allowed("alice", op, name, kind) for op, name in product(SINGLE, ("x", None)))


@pytest.mark.parametrize("kind", OTHERS)
def test_names_and_prefixes_of_every_kind(kind: Kind) -> None:
    for pattern, fits, other in (("a", "a", "ab"), ("a*", "ab", "b"), ("*", "__x", None)):
        named: dict[str, Any] = {kind.value: pattern}
        authorize = Authorize({}, [Rule("alice", [Operation.READ], **named)])
        assert reason(authorize, "alice", Operation.READ, fits, kind) is None
        assert reason(authorize, "alice", Operation.DESCRIBE, fits, kind) is None
        assert reason(authorize, "alice", Operation.WRITE, fits, kind) is Reason.NOT_AUTHORIZED
        assert authorize.is_allowed("alice", Operation.DESCRIBE, None, kind)
        assert not authorize.is_allowed("alice", Operation.READ, fits), "a topic of that name is another matter"
        if other is not None:
            assert reason(authorize, "alice", Operation.READ, other, kind) is Reason.NOT_AUTHORIZED


def test_a_rule_for_every_operation_that_names_nothing_is_an_administrators() -> None:
    authorize = Authorize({}, [Rule("root", [Operation.ALL]), Rule("all", [Operation.ALL], "*")])
    for operation, name, kind in product(SINGLE, ("x", "__kv", None), Kind):
        assert authorize.is_allowed("root", operation, name, kind)
    assert not authorize.is_allowed("all", Operation.CLUSTER, None)


def test_every_topic_is_not_the_nodes_own() -> None:
    """`*`, and a prefix that might be chance, leave out what begins with two underscores; a denial does not."""
    for pattern, own, kv in (("*", False, False), ("_*", False, False), ("__*", True, True), ("__kv", False, True)):
        authorize = Authorize({}, [Rule("alice", [Operation.READ], pattern)])
        found = [authorize.is_allowed("alice", Operation.READ, name) for name in ("__state", "__kv")]
        assert found == [own, kv], pattern
        assert reason(authorize, "alice", Operation.READ, "__state") is (None if own else Reason.TOPIC_NOT_FOUND)
    rules = [Rule("alice", [Operation.ALL]), Rule("*", [Operation.READ], "*", deny=True)]
    assert not Authorize({}, rules).is_allowed("alice", Operation.READ, "__kv")


def test_a_denial_wins_and_is_about_its_operations_only() -> None:
    rules = [
        Rule("alice", [Operation.ALL]),
        Rule("alice", [Operation.READ], "secret*", group="secret", deny=True),
        Rule("*", [Operation.ALL], transactional_id="locked", deny=True),
    ]
    authorize = Authorize({}, rules)
    assert reason(authorize, "alice", Operation.READ, "secret1") is Reason.NOT_AUTHORIZED
    assert reason(authorize, "alice", Operation.WRITE, "secret1") is None
    assert reason(authorize, "alice", Operation.DESCRIBE, "secret1") is None
    assert reason(authorize, "alice", Operation.READ, "secret", Kind.GROUP) is Reason.NOT_AUTHORIZED
    assert reason(authorize, "alice", Operation.READ, "secret2", Kind.GROUP) is None
    assert reason(authorize, "alice", Operation.DESCRIBE, "locked", Kind.TRANSACTIONAL_ID) is Reason.NOT_AUTHORIZED
    assert authorize.is_allowed("alice", Operation.READ, None), "some topic is left"
    assert not Authorize({}, [rules[0], Rule("alice", [Operation.READ], deny=True)]).is_allowed(
        "alice", Operation.READ, None
    )


def test_rules_of_others_cost_a_request_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    allows = Rule.allows

    def noted(rule: Rule, *asked: Any) -> bool:
        looked_at.append(rule.principal)
        return allows(rule, *asked)

    monkeypatch.setattr(Rule, "allows", noted)
    others = [Rule(f"user{number}", [Operation.READ], "a") for number in range(1000)]
    authorize = Authorize({}, [*others, Rule("alice", [Operation.READ], "a"), Rule("*", [Operation.READ], "b")])
    assert [authorize.is_allowed("alice", Operation.READ, name) for name in "abc"] == [True, True, False]
    assert looked_at == ["alice", "alice", "*", "alice", "*"]
