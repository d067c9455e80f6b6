"""Carries the sender's OpenTelemetry context in record headers to the reader.

Uses the headers of OpenTelemetry's global propagator (W3C `traceparent` by default). Needs the package
`opentelemetry-api` only when it is used. Does not handle: spans, exporters.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from braidlog.model.record import Header

if TYPE_CHECKING:
    from opentelemetry.context import Context


def check_installed() -> None:
    try:
        import opentelemetry.propagate  # noqa: F401, PLC0415 - an option, which most programs do not use
    except ImportError as error:
        raise ValueError("trace_context needs OpenTelemetry: pip install 'braidlog[otel]'") from error


def with_context(headers: Sequence[Header]) -> tuple[Header, ...]:
    """Return these headers, and those of the current context: none outside a span."""
    from opentelemetry import propagate  # noqa: PLC0415

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    named = {name for name, _ in headers}
    return (*headers, *((name, text.encode()) for name, text in carrier.items() if name not in named))


def context_of(headers: Iterable[Header]) -> "Context":
    """Return the context in which a record was sent: `tracer.start_as_current_span("work",
    context_of(record.headers))`."""
    from opentelemetry import propagate  # noqa: PLC0415

    return propagate.extract({name: value.decode(errors="replace") for name, value in headers if value is not None})
