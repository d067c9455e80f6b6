"""Rules for the only replica of a partition: it leads, and its records are committed once they are as durable as the
topic requires.

These rules say when its log may be written without a step (`partition/replica_runner.py`). The replica's state catches up
before its next step.
"""

from braidlog.replication import external
from braidlog.replication import leader as leading
from braidlog.replication.messages import Assigned
from braidlog.replication.replica_state import InSyncSet, Leader, Replica


def is_sole(replica: Replica) -> bool:
    """Whether this replica leads and is the only one, so that its own records are committed."""
    role = replica.role
    return (
        isinstance(role, Leader)
        and role.has_begun
        and not role.followers
        and role.members == InSyncSet((replica.node,))
        and (replica.min_in_sync <= 1 or external.counts(replica))
        and not replica.is_damaged
    )


def has_external(replica: Replica) -> bool:
    """Whether followers outside the metadata count."""
    return isinstance(replica.role, Leader) and bool(external.counted(replica, replica.role))


def commits_without_step(replica: Replica) -> bool:
    """Whether every record of the only replica is committed and no waiter needs a step."""
    role = replica.role
    return (
        is_sole(replica)
        and isinstance(role, Leader)
        and not (external.counted(replica, role) or role.waiting or role.deleting or role.reads)
    )


def resumed(replica: Replica, message: Assigned, epoch: int) -> Replica:
    """Resume the last epoch of the only replica when its log is opened again, as no other replica has led since.

    A damaged replica also leads: no other copy exists, and its log rejects writes.
    """
    incarnation = message.incarnation_of(replica.node)
    replica = replica.now(incarnation=incarnation, assigned=message, epoch=epoch, is_damaged=False)
    leader = Leader(
        start=replica.log.end,
        members=InSyncSet(message.assignment.in_sync),
        followers=(),
        external=external.placed(message),
        has_begun=True,
    )
    return leading.advanced(replica, leader)[0]
