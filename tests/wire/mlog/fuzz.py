"""One run of a fuzzer: any bytes, to both ends and to batches. Anything but a refusal or a message is a bug.

`fuzz_one` is the entry point for a coverage-guided fuzzer; test_fuzz.py drives it with damaged vectors.
"""

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.mlog.connection import ClientConnection, ServerConnection, frame
from braidlog.wire.mlog.gojson import GoStruct
from braidlog.wire.mlog.operations import OPERATIONS
from braidlog.wire.mlog.replication import decode_batch, encode_batch


def fuzz_one(data: bytes) -> None:
    server = ServerConnection()
    server.receive(data)
    _drain(server)
    client = ClientConnection()
    number = int.from_bytes(data[:2], "big")
    for row in OPERATIONS:
        if row.response_number == number:
            client.request(row.request())
    client.receive(data)
    _drain(client)
    try:
        batch = decode_batch(data)
    except ProtocolError:
        pass
    else:
        assert encode_batch(batch.records, batch.leader_epoch) == data


def _drain(connection: ServerConnection | ClientConnection) -> None:
    while (event := connection.next_event()) is not NEED_DATA:
        if isinstance(event, Refused):
            assert event.close
            assert connection.next_event() is NEED_DATA
            return
        # Whatever was understood can be said again, and means the same.
        assert isinstance(event, GoStruct)
        again = frame(event)
        echo = ServerConnection() if isinstance(connection, ServerConnection) else _asked(again)
        echo.receive(again)
        assert echo.next_event() == event


def _asked(answer: bytes) -> ClientConnection:
    client = ClientConnection()
    for row in OPERATIONS:
        if row.response_number == int.from_bytes(answer[:2], "big"):
            client.request(row.request())
    return client
