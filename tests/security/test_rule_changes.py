"""Rules added at run time: they hold at once and after a crash, and only where there are rules at all."""

from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.model.errors import Reason
from braidlog.security.authorization import Authorize, Operation, Rule
from braidlog.security.rule_changes import Rules

CONFIGURED = Rule("root", [Operation.ALL])


def rules_of(node: Node) -> tuple[Rules, Authorize]:
    authorize = Authorize({}, [CONFIGURED])
    return Rules(node.services.metadata, authorize), authorize


def test_an_added_rule_holds_at_once_and_after_a_restart() -> None:
    node = Node()
    rules, authorize = rules_of(node)
    assert not authorize.is_allowed("alice", Operation.READ, "orders")
    wanted = [
        Rule("alice", [Operation.READ], "ord*"),
        Rule("bob", [Operation.WRITE], "orders"),
        Rule("bob", [Operation.READ], group="g", transactional_id="t*", key="k"),
        Rule("bob", [Operation.READ], key="k2", deny=True),
    ]
    node.run(rules.add(wanted))
    node.run(rules.add(wanted))
    for each in (authorize, rules_of(node.restarted())[1]):
        assert each.is_allowed("alice", Operation.READ, "orders")
        assert not each.is_allowed("alice", Operation.WRITE, "orders")
        assert each.is_allowed("root", Operation.WRITE, "orders")
    assert rules.all() == [CONFIGURED, *wanted]
    assert node.run(rules.drop(lambda rule: rule.principal in ("alice", "root"))) == [wanted[0]]
    for each in (authorize, rules_of(node.restarted())[1]):
        assert not each.is_allowed("alice", Operation.READ, "orders")
        assert each.is_allowed("root", Operation.READ, "orders"), "the configuration's rules stay"


def test_where_there_are_no_rules_none_is_added() -> None:
    node = Node()
    for change in (node.services.rules.add([CONFIGURED]), node.services.rules.drop(lambda _: True)):
        with refused_with(Reason.RULE_NOT_SUPPORTED):
            node.run(change)
    assert node.services.authorize.is_allowed("anyone", Operation.WRITE, "orders")
