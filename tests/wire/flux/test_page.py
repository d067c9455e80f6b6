"""The dialect's page and the table say the same."""

from tests.wire.pages import page, table

from braidlog.wire.flux.lines import CORRELATION_ID_BYTES_MAX
from braidlog.wire.flux.messages import ErrorCode
from braidlog.wire.flux.operations import OPERATIONS, WAIT_MS_MAX, Argument, Operation, Place
from braidlog.wire.flux.records import LINE_BYTES_MAX, RECORDS_PER_LINE_MAX
from braidlog.wire.flux.tokens import KEY_BYTES_MAX, PAIR

PAGE = page("flux")


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else "none"


def _argument(argument: Argument) -> str:
    match argument.place:
        case Place.REQUIRED:
            return argument.kind.shape if argument.kind is PAIR else f"<{argument.word}>"
        case Place.OPTIONAL:
            return f"[{argument.word}]"
        case Place.OPTION:
            return f"[{argument.word}={argument.kind.shape}]"


def _arguments(operation: Operation) -> str:
    return " ".join(map(_argument, operation.arguments))


def _payload(operation: Operation) -> str:
    return operation.text or " ".join(f"{part.word}={part.kind.shape}" for part in operation.payload)


def test_the_page_has_the_table() -> None:
    rows = [
        (
            _cell(o.command),
            _cell(" ".join(map(_argument, o.arguments))),
            _cell(_payload(o)),
            o.purpose,
            ", ".join(o.errors) or "none",
        )
        for o in OPERATIONS
    ]
    assert table(("command", "arguments", "answers", "for", "errors beside BAD_REQUEST"), rows) + "\n" in PAGE


def test_the_page_names_every_error() -> None:
    assert all(f"| `{code}` |" in PAGE for code in ErrorCode)


def test_the_page_names_the_limits() -> None:
    for limit in (LINE_BYTES_MAX, CORRELATION_ID_BYTES_MAX, KEY_BYTES_MAX, RECORDS_PER_LINE_MAX, WAIT_MS_MAX):
        assert f"{limit:,}" in PAGE
