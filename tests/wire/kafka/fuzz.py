"""Drive both ends of the dialect with arbitrary bytes. Anything but an event of the contract is a defect.

`fuzz_one` is for a coverage-guided fuzzer; the seeded test beside it feeds it damaged valid frames.
"""

from tests.wire.kafka.drive import client_at
from tests.wire.lone import check_lone

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.kafka.apis import APIS, BY_KEY
from braidlog.wire.kafka.connection import RefusedRequest, Request, Response, ServerConnection


def fuzz_one(data: bytes) -> None:
    fuzz_server(data)
    fuzz_client(data)


def fuzz_server(data: bytes) -> None:
    check_lone(ServerConnection, data)
    connection = ServerConnection()
    connection.receive(data)
    while (event := connection.next_event()) is not NEED_DATA:
        if isinstance(event, Request):
            if event.version in event.api.versions:
                # What was read can be written, and reads as the same again.
                again = ServerConnection()
                again.receive(client_at(event.correlation_id % 2**31).request(event.message, event.version))
                assert again.next_event().message == event.message  # type: ignore[union-attr]
            connection.respond(event, event.api.response())
        else:
            assert isinstance(event, RefusedRequest)
            assert event.close == (event.answer is None)
            if event.answer is not None:
                assert isinstance(connection.respond(event, event.answer), bytes)


def fuzz_client(data: bytes) -> None:
    """Expect what the bytes say of themselves: the id is theirs, the API and version are picked by their last bytes."""
    if len(data) < 10:
        return
    api = BY_KEY.get(data[-1]) or APIS[data[-1] % len(APIS)]
    version = api.versions.first + data[-2] % (api.versions.last - api.versions.first + 1)
    fuzz_response(data, api.key, version)


def fuzz_response(data: bytes, key: int, version: int) -> None:
    api = BY_KEY[key]
    connection = client_at(int.from_bytes(data[4:8], "big", signed=True))
    try:
        connection.request(api.request(acks=1) if api.name == "Produce" else api.request(), version)
    except ValueError:
        return  # no request has a negative id
    connection.receive(data)
    while (event := connection.next_event()) is not NEED_DATA:
        if isinstance(event, Refused):
            assert event.close
            break
        assert isinstance(event, Response)
