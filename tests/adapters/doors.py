"""Every door as a writer, a reader, a committer and a member of a group sees it: one small class each, and a table of them.

A dialect joins the tests of kills by a class here and a row in `DOORS`.
"""

import json
from collections import deque
from typing import Any, Protocol

from tests.adapters.cursus.drive import Client as CursusClient
from tests.adapters.cursus.drive import batch
from tests.adapters.flux.talk import Talk, fields
from tests.adapters.kafka.client import Client as KafkaClient
from tests.adapters.kafka.client import batch_of, produce_of, values_of
from tests.adapters.mlog.client import MlogClient
from tests.adapters.rustlog.client import Client as RustlogClient

from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.messages import cluster as kafka_cluster
from braidlog.wire.kafka.messages import groups as kafka_groups
from braidlog.wire.kafka.messages import topics as kafka_topics
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.rustlog import messages as rustlog

GONE = (EOFError, OSError)
"""How a connection to a node that was killed ends."""


class Door(Protocol):
    """One connection. Everything but `send` waits for its answer; GONE when the node is."""

    def __init__(self, server: ServerProcess) -> None: ...

    def create(self, topic: str) -> None:
        """A topic of one partition."""

    def topics(self) -> set[str]: ...

    def send(self, topic: str, value: str) -> None:
        """Produce, without waiting."""

    def acknowledged(self) -> tuple[str, int]:
        """The next acknowledgement: a value that was sent, and its offset."""
        ...

    def read(self, topic: str) -> dict[int, str]:
        """All there is, by offset."""
        ...

    def commit(self, group: str, topic: str, offset: int) -> None: ...

    def committed(self, group: str, topic: str) -> int: ...

    def join(self, group: str, topic: str, member: str) -> int | None:
        """The generation that this made; None where the dialect has no groups."""
        ...

    def close(self) -> None: ...


class RustlogDoor:
    def __init__(self, server: ServerProcess) -> None:
        self._client = RustlogClient(server)
        self._sent: deque[str] = deque()

    def create(self, topic: str) -> None:
        assert self._client.create(topic).success

    def topics(self) -> set[str]:
        return {topic.name for topic in self._client.ask(rustlog.ListTopics()).topics}

    def send(self, topic: str, value: str) -> None:
        self._sent.append(value)
        self._client.send(rustlog.Produce(topic=topic, partition=0, records=[value.encode()]))

    def acknowledged(self) -> tuple[str, int]:
        answer = self._client.receive()
        return self._sent.popleft(), answer.base_offset

    def read(self, topic: str) -> dict[int, str]:
        found: dict[int, str] = {}
        offset = 0
        while (page := self._client.fetch(topic, offset)).records:
            found |= {record.offset: record.payload.decode() for record in page.records}
            offset = page.next_offset
        return found

    def commit(self, group: str, topic: str, offset: int) -> None:
        assert self._client.commit(group, topic, offset).success

    def committed(self, group: str, topic: str) -> int:
        return self._client.committed(group, topic) or 0

    def join(self, group: str, topic: str, member: str) -> int | None:
        return None

    def close(self) -> None:
        self._client.close()


class MlogDoor:
    def __init__(self, server: ServerProcess) -> None:
        self._client = MlogClient(server)
        self._sent: deque[str] = deque()

    def create(self, topic: str) -> None:
        self._client.create(topic)

    def topics(self) -> set[str]:
        return {topic.name for topic in self._client.ask(mlog.ListTopicsRequest()).topics or ()}

    def send(self, topic: str, value: str) -> None:
        self._sent.append(value)
        self._client.send(mlog.ProduceRequest(topic, value.encode(), mlog.AckMode.LEADER))

    def acknowledged(self) -> tuple[str, int]:
        answer = self._client.receive()
        return self._sent.popleft(), answer.offset

    def read(self, topic: str) -> dict[int, str]:
        found: dict[int, str] = {}
        while entries := self._client.ask(mlog.FetchBatchRequest(topic, "reader", len(found), 5000)).entries:
            found |= {entry.offset: entry.value.decode() for entry in entries}
        return found

    def commit(self, group: str, topic: str, offset: int) -> None:
        assert self._client.ask(mlog.CommitOffsetRequest(topic, group, offset)).success

    def committed(self, group: str, topic: str) -> int:
        offset: int = self._client.ask(mlog.FetchOffsetRequest(topic, group)).offset
        return offset

    def join(self, group: str, topic: str, member: str) -> int | None:
        return None

    def close(self) -> None:
        self._client.close()


class FluxDoor:
    """Answers may come in any order, each with its request's id."""

    def __init__(self, server: ServerProcess) -> None:
        self._talk = Talk(server.address("flux"))
        self._sent: dict[str, str] = {}
        self._generation: dict[str, str] = {}

    def _ask(self, command: str, args: str = "") -> dict[str, str]:
        number = self._talk.begin(command, args)
        _, answered, rest = self._line().split("|", 2)
        assert answered == number
        return fields(rest)

    def _line(self) -> str:
        line = self._talk.line()
        if not line:
            raise EOFError
        return line

    def create(self, topic: str) -> None:
        self._ask("ADMIN_CREATE_TOPIC", f"{topic} 1 1")

    def topics(self) -> set[str]:
        return set(self._ask("ADMIN_GET_METADATA")["topics"].strip("[]").split())

    def send(self, topic: str, value: str) -> None:
        self._sent[self._talk.begin("PRODUCE", f"{topic} k:{value}")] = value

    def acknowledged(self) -> tuple[str, int]:
        _, number, rest = self._line().split("|", 2)
        return self._sent.pop(number), int(fields(rest)["offset"])

    def read(self, topic: str) -> dict[int, str]:
        found: dict[int, str] = {}
        while pairs := self._ask("CONSUME", f"{topic} 0 {len(found)}")["messages"]:
            found |= {int(offset): value for offset, _, value in (pair.partition(":") for pair in pairs.split(","))}
        return found

    def commit(self, group: str, topic: str, offset: int) -> None:
        if group not in self._generation:
            self._generation[group] = self._ask("JOIN", f"{group} {topic} committer")["generation"]
        answer = self._ask("COMMIT", f"{group} {topic} committer {self._generation[group]} 0 {offset}")
        assert answer == {"committed": "true"}

    def committed(self, group: str, topic: str) -> int:
        return int(self._ask("OFFSET", f"{group} {topic} 0")["offset"])

    def join(self, group: str, topic: str, member: str) -> int | None:
        return int(self._ask("JOIN", f"{group} {topic} {member}")["generation"])

    def close(self) -> None:
        self._talk.close()


class CursusDoor:
    def __init__(self, server: ServerProcess) -> None:
        self._client = CursusClient(server)
        self._sent: deque[str] = deque()

    def create(self, topic: str) -> None:
        self._client.ok(f"CREATE topic={topic} partitions=1")

    def topics(self) -> set[str]:
        return set(self._client.ok("LIST").partition("topics=")[2].split(","))

    def send(self, topic: str, value: str) -> None:
        self._sent.append(value)
        self._client.send(batch(topic, value.encode()))

    def acknowledged(self) -> tuple[str, int]:
        offset = last_offset(self._client)
        return self._sent.popleft(), offset

    def read(self, topic: str) -> dict[int, str]:
        found: dict[int, str] = {}
        while records := self._client.consume(topic, 0, len(found)):
            found |= {record.offset: record.payload.decode() for record in records}
        return found

    def commit(self, group: str, topic: str, offset: int) -> None:
        self._client.ok(f"COMMIT_OFFSET topic={topic} partition=0 group={group} offset={offset}")

    def committed(self, group: str, topic: str) -> int:
        return int(self._client.ok(f"FETCH_OFFSET topic={topic} partition=0 group={group}").rpartition("=")[2])

    def join(self, group: str, topic: str, member: str) -> int | None:
        answer = self._client.ok(f"JOIN_GROUP topic={topic} group={group} member={member}")
        return int(fields(answer.replace(" ", "|", 1))["generation"])

    def close(self) -> None:
        self._client.socket.close()


class KafkaDoor:
    """Its groups are joined in rounds: who has joined leaves again, so that the next one need not wait for it."""

    def __init__(self, server: ServerProcess) -> None:
        self._client = KafkaClient(server)
        self._sent: deque[str] = deque()

    def create(self, topic: str) -> None:
        asked = kafka_topics.CreateTopicsRequest([kafka_topics.CreateTopicsRequestTopic(topic, 1, 1)], 10_000)
        assert self._client.ask(asked).topics[0].error_code == 0

    def topics(self) -> set[str]:
        return {topic.name for topic in self._client.ask(kafka_cluster.MetadataRequest(None)).topics}

    def send(self, topic: str, value: str) -> None:
        self._sent.append(value)
        self._client.send(produce_of((topic, 0, batch_of(value.encode()))), version=9)

    def acknowledged(self) -> tuple[str, int]:
        (told,) = self._client.receive().responses[0].partition_responses
        assert told.error_code == 0, told
        return self._sent.popleft(), told.base_offset

    def read(self, topic: str) -> dict[int, str]:
        found: dict[int, str] = {}
        while rows := values_of(self._client.fetch(topic, len(found)).records):
            found |= {offset: (value or b"").decode() for offset, value in rows}
        return found

    def commit(self, group: str, topic: str, offset: int) -> None:
        place = kafka_groups.OffsetCommitRequestPartition(0, offset)
        asked = kafka_groups.OffsetCommitRequest(
            group_id=group, topics=[kafka_groups.OffsetCommitRequestTopic(topic, partitions=[place])]
        )
        assert self._client.ask(asked, 7).topics[0].partitions[0].error_code == 0

    def committed(self, group: str, topic: str) -> int:
        wanted = [kafka_groups.OffsetFetchRequestTopic(topic, partition_indexes=[0])]
        answer = self._client.ask(kafka_groups.OffsetFetchRequest(group_id=group, topics=wanted), 5)
        assert answer.error_code == 0, answer
        return max(int(answer.topics[0].partitions[0].committed_offset), 0)

    def join(self, group: str, topic: str, member: str) -> int | None:
        protocol = kafka_groups.JoinGroupRequestProtocol("range", member.encode())
        asked = kafka_groups.JoinGroupRequest(group, 6000, 500, protocol_type="consumer", protocols=[protocol])
        answer = self._client.ask(asked, 3)
        assert answer.error_code == 0, answer
        self._client.ask(kafka_groups.LeaveGroupRequest(group, answer.member_id), 1)
        return int(answer.generation_id)

    def close(self) -> None:
        self._client.close()


def last_offset(client: CursusClient) -> int:
    """Of the next acknowledgement of a batch."""
    answer: dict[str, Any] = json.loads(client.read())
    assert answer["status"] == "OK", answer
    offset: int = answer["last_offset"]
    return offset


DOORS: dict[str, type[Door]] = {
    "cursus": CursusDoor,
    "flux": FluxDoor,
    "kafka": KafkaDoor,
    "mlog": MlogDoor,
    "rustlog": RustlogDoor,
}
