"""What a program that uses the client names: options, errors, serializers, the context of a trace."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from tests.client.dialects import fresh, read, server_url

import braidlog
from braidlog import aio
from braidlog.client import errors
from braidlog.client.engine.options import ConsumerKeywords, ConsumerOptions, ProducerKeywords, ProducerOptions
from braidlog.client.serializers import JSON, TEXT, Serializer, json_of, msgpack_of
from braidlog.client.tracing import context_of
from braidlog.testing.server import ServerProcess

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/client.md").read_text(encoding="utf-8")
ERRORS = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.ClientError)]


@pytest.mark.parametrize(
    ("keywords", "options"), [(ProducerKeywords, ProducerOptions), (ConsumerKeywords, ConsumerOptions)]
)
def test_keywords_are_the_options(keywords: type, options: type) -> None:
    """Of an enumeration its values are taken too."""
    named, kept = get_type_hints(keywords), get_type_hints(options)
    assert list(named) == list(kept)
    for name, kind in kept.items():
        words = {
            word
            for part in get_args(kind) or (kind,)
            if isinstance(part, type) and issubclass(part, str)
            for word in getattr(part, "__members__", {}).values()
        }
        allowed = {
            word
            for part in get_args(named[name])
            for word in (get_args(part) if getattr(part, "__origin__", None) is Literal else ())
        }
        if words:
            assert allowed == {str(word) for word in words}, name
        else:
            assert named[name] == kind, name


def test_every_error_is_exported_and_in_the_guide() -> None:
    for each in ERRORS:
        assert getattr(braidlog, each.__name__) is each
        assert each.__name__ in braidlog.__all__
        if each is not errors.ClientError:
            assert f"`{each.__name__}`" in GUIDE
    for refusal in errors.Refusal:
        row = f"| `{refusal.name}` | {refusal.value.text} | {'yes' if refusal.retriable else 'no'} | {refusal.stored.value} |"
        assert row in GUIDE


class Order(msgspec.Struct):
    book: str
    count: int = 1


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("serializer", "value", "raw"),
    [
        (TEXT, "gr\u00fcn", b"gr\xc3\xbcn"),
        (JSON, {"a": [1, None]}, b'{"a":[1,null]}'),
        (json_of(Order), Order("one"), b'{"book":"one","count":1}'),
        (json_of(Point), Point(1, 2), b'{"x":1,"y":2}'),
        (msgpack_of(Point), Point(1, 2), b"\x82\xa1x\x01\xa1y\x02"),
    ],
)
def test_serializers(serializer: Serializer[Any], value: Any, raw: bytes) -> None:
    assert serializer.encode(value) == raw
    assert serializer.decode(raw) == value
    assert serializer.encode(None) is serializer.decode(None) is None
    with pytest.raises(braidlog.RecordError, match=f"not {serializer.name}"):
        serializer.decode(b"\xff{")
    with pytest.raises(braidlog.RecordError, match="object cannot be written as"):
        serializer.encode(object())


async def test_the_context_of_a_trace_goes_with_the_record(braid_server_shared: ServerProcess) -> None:
    async with aio.connect(server_url("kafka", braid_server_shared)) as client:
        topic = fresh()
        await client.admin.create_topic(topic)
        producer = client.producer(trace_context=True)
        context = SpanContext(0xABCD << 64, 0x1234, is_remote=False, trace_flags=TraceFlags(1))
        with trace.use_span(NonRecordingSpan(context)):
            carrier: dict[str, str] = {}
            inject(carrier)
            await producer.send_and_wait(topic, b"in a span", headers=[("own", b"1")])
        await producer.send_and_wait(topic, b"in none")
        first, second = await read(client, topic, 2)
        assert first.headers == (("own", b"1"), ("traceparent", carrier["traceparent"].encode()))
        assert second.headers == ()
        told = trace.get_current_span(context_of(first.headers)).get_span_context()
        assert (told.trace_id, told.span_id) == (context.trace_id, context.span_id)
    async with aio.connect(server_url("mlog", braid_server_shared)) as other:
        with pytest.raises(braidlog.UnsupportedError, match="headers"):
            other.producer(trace_context=True)
