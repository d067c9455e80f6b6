"""The OpenTelemetry context of whoever sends, carried in a record's headers to whoever reads it.

Knows: which headers the global propagator of OpenTelemetry writes and reads (W3C `traceparent`, unless it was set otherwise).
Refuses to know: spans, exporters. Needs the package `opentelemetry-api`, and only when it is used.
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
    """These headers, and those of the current context: none outside of a span."""
    from opentelemetry import propagate  # noqa: PLC0415

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    named = {name for name, _ in headers}
    return (*headers, *((name, text.encode()) for name, text in carrier.items() if name not in named))


def context_of(headers: Iterable[Header]) -> "Context":
    """The context in which a record was sent: `tracer.start_as_current_span("work", context_of(record.headers))`."""
    from opentelemetry import propagate  # noqa: PLC0415

    return propagate.extract({name: value.decode(errors="replace") for name, value in headers if value is not None})
