"""Which errors send a client to look for the leader again: mlog's ShouldReconnect, row by row."""

import pytest

from braidlog.wire.mlog.errors import ErrorCode, RPCErrorResponse, should_reconnect

AGAIN = {3, 4, 11}


@pytest.mark.parametrize("code", [*range(17), -1, 17, 99])
def test_rpc_errors_are_judged_by_their_code(code: int) -> None:
    assert should_reconnect(RPCErrorResponse(code, "x")) == (code in AGAIN)


def test_codes_are_numbered_as_in_the_document() -> None:
    assert [code.value for code in ErrorCode] == list(range(17))
    assert ErrorCode(6) is ErrorCode.READ_OFFSET
    assert ErrorCode(16) is ErrorCode.TIMEOUT_CATCH_UP
