"""`braid cluster events` of one real node: as lines, as JSON, and as they come."""

import json

from tests.cli.braid import Braid, check, fresh

from braidlog.testing.server import ServerProcess


def test_a_node_that_is_alone_tells_of_its_topics(braid_server_shared: ServerProcess) -> None:
    braid, topic = Braid(braid_server_shared), fresh()
    following = braid.start("cluster", "events", "--follow", "--since", "-1h")
    try:
        braid.ok("topic", "create", topic, "--partitions", "2")
        assert following.stdout is not None
        while topic.encode() not in (line := following.stdout.readline()):
            assert line, "it ended"
    finally:
        following.terminate()
        following.communicate()
    said = braid.ok("cluster", "events").splitlines()
    assert f"topic {topic} created (partitions: 2, replicas: 1)" in said[-1]
    last = json.loads(braid.ok("cluster", "events", "-o", "json").splitlines()[-1])
    check("cluster-event", last)
    assert (last["event"], last["topic"], last["node"]) == ("CreateTopic", topic, None)
    assert said[-1].split()[1] == str(last["seq"])
    assert braid.ok("cluster", "events", "--since", "2100-01-01") == ""
