"""What a partition asks of the node around it."""

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.messages import Answer, Complaint, Fetch
from braidlog.replication.ready import Proposal

if TYPE_CHECKING:
    from braidlog.partition.partition import Partition

Key = tuple[bytes, int]
"""A topic's id and a partition's number: what nodes call a partition among themselves."""
Listeners = dict[str, Callable[["Partition"], None]]
"""By the name of a topic: called when this node leads a partition of it, or does no more."""


class PartitionContext(Protocol):
    """The node around its partitions."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def incarnation(self) -> int | None:
        """As which the node is registered; None before it is."""
        ...

    @property
    def may_close(self) -> bool:
        """Whether unused logs are closed for a while."""
        ...

    @property
    def runtime(self) -> Runtime: ...

    def send(self, node: int, key: Key, message: Fetch | Answer | Complaint) -> None: ...

    def propose(self, partition: "Partition", proposal: Proposal) -> None: ...

    def begin_epoch(self, partition: "Partition", epoch: int) -> None:
        """Durably, with those of others; then `partition.epoch_started`."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object: ...

    @property
    def listeners(self) -> "Listeners": ...

    def opened(self, partitions: Iterable["Partition"]) -> None:
        """Partitions can be found from now on: see that they know what the metadata says of them."""
        ...

    def on_leadership_change(self, partition: "Partition") -> None:
        """A partition is led by this node from now on, or not any more, or in another epoch."""
        ...

    def replaced(self) -> None:
        """This node's number is registered by another process: it must stop."""
        ...


class StandaloneContext:
    """A `PartitionContext` that has all replicas: it reaches no other, and its partitions resume in the epoch they were in."""

    incarnation = 0
    may_close = True

    def __init__(self, name: str, number: int, runtime: Runtime) -> None:
        self.name = name
        self.number = number
        self.runtime = runtime
        self.incarnations = ((number, self.incarnation),)
        self.listeners: Listeners = {}

    def send(self, node: int, key: Key, message: Fetch | Answer | Complaint) -> None: ...

    def propose(self, partition: "Partition", proposal: Proposal) -> None:
        """No other node could lead."""

    def begin_epoch(self, partition: "Partition", epoch: int) -> None:
        """The reconciler has made it durable, and says so."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        raise AssertionError(f"nothing is done beside the loop for an only replica: {name}, {work}")

    def opened(self, partitions: Iterable["Partition"]) -> None:
        """They lead since they were opened."""
        for each in partitions:
            self.on_leadership_change(each)

    def on_leadership_change(self, partition: "Partition") -> None:
        if (listener := self.listeners.get(partition.topic)) is not None:
            listener(partition)

    def replaced(self) -> None: ...
