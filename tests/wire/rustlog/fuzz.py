"""Drive both ends of the dialect with arbitrary bytes. Anything but an event of the contract is a defect.

`fuzz_one` is for a coverage-guided fuzzer; the seeded test beside it feeds it damaged valid frames.
"""

from typing import Final

from tests.wire.lone import check_lone
from tests.wire.rustlog.vectors import ANSWERS

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.rustlog.connection import ClientConnection, RefusedFrame, Request, Response, ServerConnection
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, Error, Form

ASKED: Final = {form: [vector.asked for vector in ANSWERS if vector.form is form] for form in Form}


def fuzz_one(data: bytes) -> None:
    _server(data)
    for form in Form:
        _client(data, form)


def _server(data: bytes) -> None:
    check_lone(ServerConnection, data)
    connection = ServerConnection()
    connection.receive(data)
    while (event := connection.next_event()) is not NEED_DATA:
        if isinstance(event, Request):
            answer = connection.respond(event, Error(500, "no", None))
            ClientConnection(event.form).request(event.message)  # what was read can be written
        else:
            assert isinstance(event, RefusedFrame)
            answer = connection.respond(event, event.answer)
        assert 4 < len(answer) <= 4 + FRAME_BYTES_MAX


def _client(data: bytes, form: Form) -> None:
    """Ask for whatever the first answer seems to be, so that damage is found in the fields and not in the order."""
    for asked in ASKED[form]:
        connection = ClientConnection(form)
        connection.request(asked)
        connection.receive(data)
        while (event := connection.next_event()) is not NEED_DATA:
            if isinstance(event, Refused):
                assert event.close
                break
            assert isinstance(event, Response)
