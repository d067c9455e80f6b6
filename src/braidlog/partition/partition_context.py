"""The interface through which a partition uses the node around it."""

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.messages import Answer, Complaint, Fetch
from braidlog.replication.ready import Proposal

if TYPE_CHECKING:
    from braidlog.partition.partition import Partition

Key = tuple[bytes, int]
"""A topic's id and a partition's number: identifies a partition between nodes."""
Listeners = dict[str, Callable[["Partition"], None]]
"""By topic name: called when this node starts or stops leading a partition of the topic."""


class PartitionContext(Protocol):
    """The node around its partitions."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def incarnation(self) -> int | None:
        """The incarnation with which the node is registered; None before its registration."""
        ...

    @property
    def may_close(self) -> bool:
        """Whether idle logs are closed."""
        ...

    @property
    def runtime(self) -> Runtime: ...

    def send(self, node: int, key: Key, message: Fetch | Answer | Complaint) -> None: ...

    def propose(self, partition: "Partition", proposal: Proposal) -> None: ...

    def begin_epoch(self, partition: "Partition", epoch: int) -> None:
        """Begin an epoch durably, together with those of other partitions; then call `partition.epoch_started`."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object: ...

    @property
    def listeners(self) -> "Listeners": ...

    def opened(self, partitions: Iterable["Partition"]) -> None:
        """Called when partitions have been opened: give them their current assignments."""
        ...

    def on_leadership_change(self, partition: "Partition") -> None:
        """Called when this node starts or stops leading a partition, or leads it in a new epoch."""
        ...

    def replaced(self) -> None:
        """Called when another process has registered this node's number: this one must stop."""
        ...


class StandaloneContext:
    """The context of a standalone node, which has all replicas and no peers.

    Its partitions resume in their last epoch.
    """

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
        """Do nothing: no other node could lead."""

    def begin_epoch(self, partition: "Partition", epoch: int) -> None:
        """Do nothing: the reconciler makes the epoch durable and reports it."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> object:
        raise AssertionError(f"a sole replica does no work off the event loop: {name}, {work}")

    def opened(self, partitions: Iterable["Partition"]) -> None:
        """Report leadership: the partitions lead from their opening."""
        for each in partitions:
            self.on_leadership_change(each)

    def on_leadership_change(self, partition: "Partition") -> None:
        if (listener := self.listeners.get(partition.topic)) is not None:
            listener(partition)

    def replaced(self) -> None: ...
