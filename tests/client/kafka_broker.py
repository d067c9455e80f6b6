"""A broker that answers by script: what no well-behaved server of ours can be made to say. Its bytes are the wire's own."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from braidlog.wire.contract import NEED_DATA
from braidlog.wire.kafka.connection import ALL, Request, Served, ServerConnection, advertised_versions
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.rows import Message

Answer = Message | None
"""None: hang up instead."""
Step = Message | list[Answer] | Callable[[Any], Answer]


def one_by_one(*answers: Answer) -> list[Answer]:
    """Answered one after the other, the last for ever."""
    return list(answers)


class Broker:
    """Answers each kind of request as `script` says; `said` keeps what came."""

    def __init__(self, script: dict[type[Message], Step] | None = None, served: Served = ALL) -> None:
        self.script: dict[type[Message], Step] = {
            t.InitProducerIdRequest: t.InitProducerIdResponse(producer_id=70, producer_epoch=3),
            **(script or {}),
        }
        self.served = served
        self.said: list[Request] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        self.die()
        await asyncio.sleep(0)

    def die(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def heard(self, kind: type[Message]) -> list[Any]:
        return [request.message for request in self.said if isinstance(request.message, kind)]

    def versions(self, kind: type[Message]) -> set[int]:
        return {request.version for request in self.said if isinstance(request.message, kind)}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        connection = ServerConnection(self.served)
        try:
            while data := await reader.read(65536):
                connection.receive(data)
                while (event := connection.next_event()) is not NEED_DATA:
                    answer = self._answer(event) if isinstance(event, Request) else event.answer
                    if answer is None:
                        break
                    output = connection.respond(event, answer)
                    assert isinstance(output, bytes)
                    writer.write(output)
                else:
                    continue
                break
        except ConnectionError:
            pass
        writer.transport.abort()

    def _answer(self, request: Request) -> Answer:
        self.said.append(request)
        if isinstance(request.message, c.ApiVersionsRequest):
            return c.ApiVersionsResponse(api_keys=advertised_versions(self.served))
        step = self.script[type(request.message)]
        if isinstance(step, list):
            return step.pop(0) if len(step) > 1 else step[0]
        return step if isinstance(step, Message) else step(request.message)


def told(leader: Broker, *others: Broker, partitions: int = 1, topic: str = "t", code: int = 0) -> c.MetadataResponse:
    """A cluster in which one broker, number 1, leads everything."""
    nodes = [c.MetadataResponseBroker(at, "127.0.0.1", each.port) for at, each in enumerate((leader, *others), start=1)]
    parts = [c.MetadataResponsePartition(0, number, 1) for number in range(partitions)]
    return c.MetadataResponse(
        brokers=nodes, controller_id=1, topics=[c.MetadataResponseTopic(code, topic, partitions=parts)]
    )


def produced(code: int = 0, offset: int = 41) -> d.ProduceResponse:
    part = d.ProduceResponsePartition(0, code, offset)
    return d.ProduceResponse([d.ProduceResponseTopic("t", partition_responses=[part])])


def batches(broker: Broker) -> list[bytes]:
    """The batches that came, as they came."""
    return [
        bytes(part.records)
        for message in broker.heard(d.ProduceRequest)
        for topic in message.topic_data
        for part in topic.partition_data
    ]
