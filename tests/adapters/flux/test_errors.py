"""The table of reasons is total, and says what flux's clients wait for."""

import pytest

from braidlog.adapters.flux.errors import CODES, TEXTS, failed
from braidlog.adapters.flux.handlers import FluxAdapter
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.wire.flux.messages import ErrorCode
from braidlog.wire.flux.operations import OPERATIONS


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_row(reason: Reason) -> None:
    answer = failed(BrokerError(reason, "in the services' words"))
    assert answer.code == CODES[reason]
    assert answer.message == TEXTS.get(reason, "in the services' words")


def test_generation_mismatch_is_always_one_of_the_four_texts() -> None:
    mismatches = {reason for reason, code in CODES.items() if code is ErrorCode.GENERATION_MISMATCH}
    assert mismatches == set(TEXTS)
    assert set(TEXTS.values()) == {
        "group not found",
        "stale generation",
        "unknown member",
        "partition not assigned to member",
    }


def test_a_fault_of_the_disk_is_told_without_its_paths() -> None:
    answer = failed(StorageFault("cannot write", "/var/lib/braidlog/topics/00000001"))
    assert answer.code == ErrorCode.UNAVAILABLE
    assert "/" not in answer.message


def test_a_protocol_error_is_a_bad_request() -> None:
    assert failed(ProtocolError("not an offset")).code == ErrorCode.BAD_REQUEST


def test_every_command_has_a_route() -> None:
    assert set(FluxAdapter.routes) == {operation.request for operation in OPERATIONS}
