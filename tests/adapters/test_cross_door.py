"""One topic, all doors: each writes, each reads everything, and what one door cannot carry is there for the others."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from braidlog import Log
from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.cursus.batch import Batch, BatchRecord
from braidlog.wire.cursus.connection import ClientConnection as CursusConnection
from braidlog.wire.cursus.requests import Consume as CursusConsume
from braidlog.wire.flux.connection import ClientConnection as FluxConnection
from braidlog.wire.flux.messages import Consume as FluxConsume
from braidlog.wire.flux.messages import Encoding
from braidlog.wire.flux.messages import Produce as FluxProduce
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.mlog.connection import ClientConnection as MlogConnection
from braidlog.wire.rustlog import messages as rustlog
from braidlog.wire.rustlog.connection import ClientConnection as RustlogConnection

Ask = Callable[[Any], Any]


@contextmanager
def door(server: ServerProcess, dialect: str, connection: Any) -> Iterator[Ask]:
    """A client of one dialect: ask(message) sends it and gives the answer."""
    with socket.create_connection(server.address(dialect), timeout=30) as connected:

        def ask(message: Any) -> Any:
            connected.sendall(connection.request(message))
            while (event := connection.next_event()) is NEED_DATA:
                data = connected.recv(1 << 16)
                assert data, f"{dialect} closed the connection"
                connection.receive(data)
            return event

        yield ask


def test_each_door_writes_and_each_reads_all(braid_server: ServerProcess) -> None:
    with (
        door(braid_server, "rustlog", RustlogConnection()) as by_rustlog,
        door(braid_server, "mlog", MlogConnection()) as by_mlog,
        door(braid_server, "flux", FluxConnection()) as by_flux,
        door(braid_server, "cursus", CursusConnection()) as by_cursus,
    ):
        by_rustlog(rustlog.CreateTopic(topic="shared", partition_count=1))
        by_rustlog(rustlog.Produce(topic="shared", partition=0, records=[b"from rustlog"], keys=[b"r"]))
        by_mlog(mlog.ProduceRequest("shared", b"from mlog", mlog.AckMode.LEADER))
        by_flux(FluxProduce("1", "shared", b"f", b"from flux", encoding=Encoding.BASE64))
        event = BatchRecord(b"from cursus", b"c", event_type="Made", schema_version=3, metadata="m")
        by_cursus(Batch("shared", 0, (event,)))
        wanted = [b"from rustlog", b"from mlog", b"from flux", b"from cursus"]

        seen = by_rustlog(rustlog.Fetch(group_id="", topic="shared", partition=0, offset=0, max_bytes=10_000)).message
        assert [record.payload for record in seen.records] == wanted
        assert [record.key for record in seen.records] == [b"r", None, b"f", b"c"]
        entries = by_mlog(mlog.FetchBatchRequest("shared", "", 0, 10, "")).entries
        assert [entry.value for entry in entries] == wanted
        shown = by_flux(FluxConsume("2", "shared", 0, 0, Encoding.BASE64)).answer
        assert [(record.key, record.value) for record in shown.records] == list(
            zip([b"r", None, b"f", b"c"], wanted, strict=True)
        )
        batch = by_cursus(CursusConsume("shared", 0, 0))
        assert [record.payload for record in batch.records] == wanted
        assert (batch.records[3].event_type, batch.records[3].schema_version, batch.records[3].metadata) == (
            "Made",
            3,
            "m",
        )
    assert braid_server.stop() == 0
    with Log(braid_server.data_dir) as log:
        kept = log.topic("shared").read()
    assert [record.value for record in kept] == wanted
    assert dict(kept[3].headers)["eventType"] == b"Made"
    assert all(record.timestamp_ms > 1_600_000_000_000 for record in kept)
