"""Every reason has a row, and no operation says a code that its own row does not list."""

import pytest

from braidlog.adapters.errors import text_of
from braidlog.adapters.mlog.errors import CODES, rpc_error
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.wire.mlog.errors import ErrorCode
from braidlog.wire.mlog.operations import OPERATIONS, Operation


def test_every_reason_has_a_row() -> None:
    assert set(CODES) == set(Reason)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda row: row.name)
def test_an_operation_says_only_what_its_row_lists(operation: Operation) -> None:
    request = operation.request()
    errors = [*(BrokerError(reason, "why") for reason in Reason), StorageFault("disk"), ProtocolError("bytes")]
    for error in errors:
        answer = rpc_error(request, error)
        assert answer.code in (*operation.errors, ErrorCode.UNKNOWN)
        assert answer.message == text_of(error)


def test_every_code_that_stands_for_a_reason_can_be_said() -> None:
    documented = {code for operation in OPERATIONS for code in operation.errors}
    assert {code for codes in CODES.values() for code in codes} == documented
    assert ErrorCode.CANNOT_REACH_LEADER not in documented
