"""Which errors send a client to look for the leader again: mlog's ShouldReconnect, row by row."""

import asyncio
import socket

import pytest

from braidlog.codec.errors import ProtocolError
from braidlog.wire.mlog.errors import ErrorCode, RPCError, RPCErrorResponse, should_reconnect

AGAIN = {3, 4, 11}


@pytest.mark.parametrize("code", [*range(17), -1, 17, 99])
def test_rpc_errors_are_judged_by_their_code(code: int) -> None:
    assert should_reconnect(RPCErrorResponse(code, "x")) == (code in AGAIN)
    assert should_reconnect(RPCError.from_response(RPCErrorResponse(code, "x"))) == (code in AGAIN)


@pytest.mark.parametrize(
    "error",
    [
        EOFError(),
        asyncio.IncompleteReadError(b"", 6),
        ConnectionResetError(),
        BrokenPipeError(),
        ConnectionRefusedError(),
        TimeoutError(),
        socket.gaierror(-2, "Name or service not known"),
        OSError(113, "No route to host"),
    ],
    ids=repr,
)
def test_a_broken_network_is_a_reason(error: BaseException | None) -> None:
    assert should_reconnect(error)
    wrapped = RuntimeError("while fetching")
    wrapped.__cause__ = error
    assert should_reconnect(wrapped)


@pytest.mark.parametrize(
    "error",
    [None, ValueError("x"), ProtocolError("frame too large"), FileNotFoundError(2, "No such file", "a.pem")],
    ids=repr,
)
def test_anything_else_is_none(error: BaseException | None) -> None:
    assert not should_reconnect(error)


def test_an_rpc_error_outweighs_what_caused_it() -> None:
    error = RPCError(ErrorCode.VALUES_REQUIRED, "no values")
    error.__cause__ = ConnectionResetError()
    assert not should_reconnect(error)


def test_errors_that_cause_each_other_come_to_an_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not should_reconnect(first)


def test_codes_are_numbered_as_in_the_document() -> None:
    assert [code.value for code in ErrorCode] == list(range(17))
    assert ErrorCode(6) is ErrorCode.READ_OFFSET
    assert ErrorCode(16) is ErrorCode.TIMEOUT_CATCH_UP
    assert str(RPCError(6, "past the end")) == "past the end"
