"""What was promised is there after a stop and after kill -9."""

import json
import re

import pytest
from tests.adapters.cursus.drive import Client, batch

from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus.batch import read_batch


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_everything_survives(braid_server: ServerProcess, way: str) -> None:
    sent = batch("t", b"a", b"b", idempotent=True, producer="p", epoch=2**40, key=b"k", event_type="E", metadata="{}")
    with Client(braid_server) as c:
        c.ok("CREATE topic=t partitions=2 retention_hours=5")
        c.ok("CREATE topic=e partitions=1 event_sourcing=true")
        assert c.ack(sent)["last_offset"] == 1
        records = c.consume("t")
        c.ok("JOIN_GROUP t g m1")
        c.ok("JOIN_GROUP t g m2")
        c.ok("BATCH_COMMIT topic=t group=g member=m1 generation=2 P0:2")
        c.ok("COMMIT t other 1 0")
        c.ok("REGISTER_GROUP topic=t group=registered")
        c.ok("APPEND_STREAM topic=e key=k version=1 message=x")
        c.ok("APPEND_STREAM topic=e key=k version=2 message=y")
        c.ok("SAVE_SNAPSHOT topic=e key=k version=1 message=s")
        found = re.search(r"producerId=\d+ epoch=\d+", c.ok("INIT_PRODUCER_ID transactional_id=x"))
        assert found is not None
        who = f"transactional_id=x {found[0]}"
        c.ok(f"BEGIN_TXN {who}")
        c.ok(f"TXN_PUBLISH {who} topic=t partition=1 seqNum=1 message=in")
    getattr(braid_server, way)()
    braid_server.restart()
    with Client(braid_server) as c:
        assert c.ask("LIST") == "OK count=2 topics=e,t"
        assert "retention_hours=5" in c.ask("CREATE topic=t")
        assert c.consume("t") == records
        assert c.ask("FETCH_OFFSET topic=t partition=0 group=g") == "OK offset=2"
        assert c.ask("LIST_GROUPS") == "OK count=3 groups=g,other,registered"
        assert c.ask("HEARTBEAT topic=t group=g member=m2 generation=2") == "OK member=m2 generation=2"
        assert c.ask("JOIN_GROUP t g m1") == "OK generation=2 member=m1 assignments=[0]"
        assert c.ask("STREAM_VERSION topic=e key=k") == "OK version=2"
        c.send("READ_STREAM topic=e key=k")
        assert json.loads(c.read())["snapshot"] == {"version": 1, "payload": "s"}
        assert [r.payload for r in read_batch(c.read())[0].records] == [b"y"]
        # The producer is who it was: its retry is known, its older self is fenced, its next batch follows.
        assert c.ack(sent)["last_offset"] == 1
        old = c.ack(batch("t", b"c", idempotent=True, producer="p", epoch=2**40 - 1, first=3))
        assert old["error"].startswith("stale_producer_epoch")
        gone = c.ack(batch("t", b"c", idempotent=True, producer="p", epoch=2**40, first=4))
        assert gone["error"].startswith("idempotency_gap")
        assert c.ack(batch("t", b"c", idempotent=True, producer="p", epoch=2**40, first=3))["last_offset"] == 2
        # The transaction is still open, and ends as it is told.
        assert "state=open" in c.ask("TXN_STATUS transactional_id=x")
        assert c.consume("t", 1) == ()
        c.ok(f"END_TXN {who} result=commit")
        assert [r.payload for r in c.consume("t", 1)] == [b"in"]
