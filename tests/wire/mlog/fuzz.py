"""One run of a fuzzer: any bytes, to both ends. Anything but a refusal or a message is a bug.

`fuzz_one` is the entry point for a coverage-guided fuzzer; test_fuzz.py drives it with damaged vectors.
"""

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.mlog.connection import ClientConnection, ServerConnection, frame
from braidlog.wire.mlog.gojson import GoStruct
from braidlog.wire.mlog.operations import OPERATIONS


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
