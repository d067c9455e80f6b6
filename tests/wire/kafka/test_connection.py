"""Both connections: versions, headers, tokens, what is tolerated and what is not."""

import struct
from typing import Any

import pytest
from tests.wire.conversation import feed
from tests.wire.kafka.drive import client_at
from tests.wire.kafka.vectors import REQUESTS

from braidlog.wire.contract import Refused
from braidlog.wire.kafka.apis import APIS, BY_KEY, BY_REQUEST, OWN, OWN_CLIENT, Key
from braidlog.wire.kafka.codes import ErrorCode
from braidlog.wire.kafka.compiler import read_message, write_message
from braidlog.wire.kafka.connection import (
    ALL,
    RAW,
    ClientConnection,
    RefusedRequest,
    Request,
    ServerConnection,
    advertised_versions,
)
from braidlog.wire.kafka.messages import cluster, data, groups, security
from braidlog.wire.kafka.rows import Span


def asked(message: Any, version: int) -> tuple[ServerConnection, Request, ClientConnection]:
    client, server = ClientConnection("me"), ServerConnection()
    (event,) = feed(server, client.request(message, version))
    assert isinstance(event, Request)
    return server, event, client


def answered(server: ServerConnection, request: Any, answer: Any, client: ClientConnection) -> Any:
    out = server.respond(request, answer)
    assert isinstance(out, bytes)
    (event,) = feed(client, out)
    return event.message


# -- the table ---------------------------------------------------------------------------------------------------


def test_each_key_and_type_stands_in_one_row() -> None:
    rows = (*APIS, *OWN)
    assert (
        len(BY_KEY) == len(BY_REQUEST) == len({api.response for api in rows}) == len(rows) == len(set(Key) - {Key.CALL})
    )


def test_only_our_own_client_is_told_of_what_is_our_own() -> None:
    own = {int(api.key) for api in OWN}
    assert min(own) > 10_000, "far from Kafka's"
    assert not own & {each.api_key for each in advertised_versions(ALL, "apache-kafka-java")}
    assert own <= {each.api_key for each in advertised_versions(ALL, OWN_CLIENT)}


def test_produce_is_told_from_0_on_and_served_from_3_on() -> None:
    assert BY_KEY[Key.PRODUCE].advertised == Span(0, 13)
    assert BY_KEY[Key.PRODUCE].versions == Span(3, 13)
    assert BY_KEY[Key.FETCH].advertised == BY_KEY[Key.FETCH].versions


# -- versions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_the_answer_to_api_versions_never_has_tags_in_its_header(version: int) -> None:
    server, request, client = asked(cluster.ApiVersionsRequest("x", "1"), version)
    out = server.respond(request, cluster.ApiVersionsResponse(0, [cluster.ApiVersionsResponseApi(18, 0, 4)]))
    assert isinstance(out, bytes)
    # size, id, and at once the error code: a tag byte here ends librdkafka and Java (kafka.md 1.3, trap 1)
    assert out[4:10] == struct.pack(">ih", 0, 0)
    (event,) = feed(client, out)
    assert event.message.api_keys == [cluster.ApiVersionsResponseApi(18, 0, 4)]


def test_an_unknown_version_of_api_versions_is_told_all_versions_in_version_0() -> None:
    server = ServerConnection()
    (event,) = feed(server, bytes.fromhex("0000000e 0012 0063 00000007 0004 74657374"))
    assert isinstance(event, RefusedRequest)
    out = server.respond(event, event.answer)
    assert isinstance(out, bytes)
    count = len(APIS)
    assert out == struct.pack(">iihi", 10 + 6 * count, 7, 35, count) + b"".join(
        struct.pack(">hhh", api.key, api.advertised.first, api.versions.last) for api in APIS
    )
    client = client_at(7)
    client.request(cluster.ApiVersionsRequest(), 4)
    (told,) = feed(client, out)
    assert told.version == 0
    assert told.message.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert len(told.message.api_keys) == count


def test_only_what_is_served_is_told_and_answered() -> None:
    server = ServerConnection({Key.API_VERSIONS: Span(0, 4), Key.METADATA: Span(0, 8)})
    client = ClientConnection()
    assert isinstance(feed(server, client.request(cluster.MetadataRequest(), 8))[0], Request)
    (event,) = feed(server, client.request(cluster.MetadataRequest(), 9))
    assert isinstance(event, RefusedRequest)
    assert event.close


def test_a_client_speaks_the_highest_version_of_both() -> None:
    client = ClientConnection()
    assert client.version_of(data.FetchRequest) == 18
    client.set_server_versions(cluster.ApiVersionsResponse(0, [cluster.ApiVersionsResponseApi(1, 0, 11)]))
    assert client.version_of(data.FetchRequest) == 11
    with pytest.raises(ValueError, match="Metadata"):
        client.version_of(cluster.MetadataRequest)
    client.set_server_versions(cluster.ApiVersionsResponse(0, [cluster.ApiVersionsResponseApi(1, 0, 3)]))
    with pytest.raises(ValueError, match="Fetch"):
        client.version_of(data.FetchRequest)
    client.set_server_versions(cluster.ApiVersionsResponse(0, [cluster.ApiVersionsResponseApi(1, 0, 99)]))
    assert client.version_of(data.FetchRequest) == 18


# -- headers -----------------------------------------------------------------------------------------------------


def test_a_client_id_may_be_absent_empty_or_long() -> None:
    for name in (None, "", "x" * 300, "naïve"):
        assert (
            feed(ServerConnection(), ClientConnection(name).request(cluster.MetadataRequest(), 12))[0].client_id == name
        )


def test_tags_of_a_header_and_of_a_message_that_nobody_knows_are_skipped() -> None:
    head = struct.pack(">hhih", 3, 9, 1, -1)
    tags = b"\x02\x00\x03abc\xff\x01\x00"
    # no topics (compact null), three flags, then tags with a value of 200 bytes
    body = b"\x00\x01\x00\x00" + b"\x01\x05\xc8\x01" + bytes(200)
    payload = head + tags + body
    (event,) = feed(ServerConnection(), len(payload).to_bytes(4, "big") + payload)
    assert event.message == cluster.MetadataRequest(None, allow_auto_topic_creation=True)


def test_a_known_tag_of_another_size_than_it_says_is_refused() -> None:
    out: list[bytes] = []
    message = data.FetchRequest(cluster_id="abc")
    write_message(message, 12, out.append, flexible=True)
    good = b"".join(out)
    assert read_message(data.FetchRequest, 12, good, 0, flexible=True) == (message, len(good))
    assert good.endswith(b"\x01\x00\x04\x04abc")
    with pytest.raises(ValueError, match="cluster_id does not have its announced size"):
        read_message(data.FetchRequest, 12, good[:-6] + b"\x00\x05\x04abc\0", 0, flexible=True)


def test_bytes_after_a_message_are_left_unread() -> None:
    for vector in REQUESTS:
        payload = vector.data[4:] + b"\x00\x01\x02"
        assert feed(ServerConnection(), len(payload).to_bytes(4, "big") + payload)[0].message == vector.message


# -- answers -----------------------------------------------------------------------------------------------------


def test_an_answer_of_another_api_is_a_mistake_of_ours() -> None:
    server, request, _ = asked(groups.HeartbeatRequest(), 4)
    with pytest.raises(TypeError, match="JoinGroupResponse does not answer Heartbeat"):
        server.respond(request, groups.JoinGroupResponse())


def test_a_value_that_does_not_fit_is_a_mistake_of_ours() -> None:
    server, request, _ = asked(groups.HeartbeatRequest(), 1)
    with pytest.raises(ValueError, match="HeartbeatResponse does not fit version 1"):
        server.respond(request, groups.HeartbeatResponse(error_code=70_000))
    with pytest.raises(ValueError, match="group_id may not be null"):
        ClientConnection().request(groups.HeartbeatRequest(group_id=None), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not fit"):
        ClientConnection().request(groups.HeartbeatRequest(group_id="x" * 40_000), 1)
    _, request, _ = asked(groups.HeartbeatRequest(group_id="x" * 40_000), 4)
    assert request.message.group_id == "x" * 40_000


def test_what_a_version_does_not_have_is_left_out() -> None:
    server, request, client = asked(groups.HeartbeatRequest("g", 1, "m", "static"), 0)
    assert request.message == groups.HeartbeatRequest("g", 1, "m")
    got = answered(server, request, groups.HeartbeatResponse(throttle_time_ms=5, error_code=27), client)
    assert got == groups.HeartbeatResponse(error_code=27)


def test_a_produce_without_acks_awaits_nothing() -> None:
    client = ClientConnection()
    client.request(data.ProduceRequest(acks=0), 9)
    assert client.in_flight == 0
    client.request(data.ProduceRequest(acks=1), 9)
    assert client.in_flight == 1


# -- records -----------------------------------------------------------------------------------------------------


class Elsewhere:
    """A slice that says when it is read."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size = len(content)
        self.source = None
        self.reads = 0

    def read(self, start: int = 0) -> bytes:
        self.reads += 1
        return self._content[start:]


@pytest.mark.parametrize("version", [11, 12, 18])
def test_slices_leave_unread_and_in_their_place(version: int) -> None:
    server, request, client = asked(data.FetchRequest(), version)
    slices = [Elsewhere(b"first " * 100), Elsewhere(b"second")]

    def answer(records: list[Any]) -> data.FetchResponse:
        partitions = [data.FetchResponsePartition(number, records=each) for number, each in enumerate(records)]
        return data.FetchResponse(responses=[data.FetchResponseTopic("t", partitions=partitions)])

    out = server.respond(request, answer([slices[0], b"", slices[1]]))
    assert isinstance(out, list)
    assert [piece for piece in out if not isinstance(piece, bytes)] == slices
    assert [each.reads for each in slices] == [0, 0]
    whole = b"".join(piece if isinstance(piece, bytes) else piece.read() for piece in out)
    assert whole == server.respond(request, answer([each.read() for each in (slices[0], Elsewhere(b""), slices[1])]))
    (event,) = feed(client, whole)
    assert [bytes(each.records) for each in event.message.responses[0].partitions] == [b"first " * 100, b"", b"second"]


@pytest.mark.parametrize("version", [3, 9, 13])
def test_records_are_a_view_of_their_frame(version: int) -> None:
    batch = b"batch " * 1000
    topics = [data.ProduceRequestTopic("t", partition_data=[data.ProduceRequestPartition(0, batch)])]
    _, request, _ = asked(data.ProduceRequest(acks=1, topic_data=topics), version)
    records = request.message.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert memoryview(records.obj).nbytes > len(batch)
    assert records == batch


# -- tokens ------------------------------------------------------------------------------------------------------


def raw(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def test_after_a_handshake_of_version_0_frames_are_tokens_until_the_client_is_known() -> None:
    server, request, client = asked(security.SaslHandshakeRequest("PLAIN"), 0)
    answered(server, request, security.SaslHandshakeResponse(mechanisms=["PLAIN"]), client)
    (token,) = feed(server, raw(b"\0user\0secret"))
    assert (token.key, token.version) == (Key.SASL_AUTHENTICATE, RAW)
    assert token.message == security.SaslAuthenticateRequest(b"\0user\0secret")
    assert server.respond(token, security.SaslAuthenticateResponse(auth_bytes=b"go on")) == raw(b"go on")
    (token,) = feed(server, raw(b"more"))
    assert token.message.auth_bytes == b"more"
    assert server.respond(token, security.SaslAuthenticateResponse(error_code=58)) == b""
    server.authenticated()
    assert feed(server, client.request(cluster.MetadataRequest(), 0))[0].key == Key.METADATA


@pytest.mark.parametrize(("version", "error"), [(1, 0), (0, 33)], ids=["version 1", "refused"])
def test_else_requests_follow_a_handshake(version: int, error: int) -> None:
    server, request, client = asked(security.SaslHandshakeRequest("PLAIN"), version)
    answered(server, request, security.SaslHandshakeResponse(error, ["PLAIN"]), client)
    (event,) = feed(server, client.request(security.SaslAuthenticateRequest(b"x"), 2))
    assert (event.key, event.version) == (Key.SASL_AUTHENTICATE, 2)


# -- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "hint"), [(b"GET / HT", "GET"), (b"\x16\x03\x01\x02\x00", "TLS"), (b"POST", "POST"), (b"\xff" * 4, "")]
)
def test_other_protocols_are_told_from_a_length(first: bytes, hint: str) -> None:
    server = ServerConnection()
    (event,) = feed(server, first)
    assert isinstance(event, Refused)
    assert event.close
    assert hint in str(event.error)
    assert feed(server, ClientConnection().request(cluster.MetadataRequest(), 0)) == []
    assert server.buffered_bytes == 0


def test_a_stranger_may_be_allowed_less() -> None:
    server = ServerConnection()
    server.frame_bytes_max = 64
    assert isinstance(feed(server, (65).to_bytes(4, "big"))[0], RefusedRequest)
    server = ServerConnection()
    refused = server.turn_away("nobody knows you")
    assert (refused.close, refused.answer) == (True, None)
