"""What a stage is called: the transactional id that says whose records it holds.

Knows: the form of the name, shared by who writes a stage and by who decides it. Refuses to know: what becomes of one.
Invariant: a name belongs to one sink and one batch only; two attempts at one task have two names.

    braidlog.sink/<sink>/<batch id>/<task>        the sink's own name may hold slashes, the last two parts hold none
"""

from typing import NamedTuple

from braidlog.model.errors import BrokerError, Reason

PREFIX = "braidlog.sink/"
SINK_CHARS_MAX = 160
TASK_CHARS_MAX = 40
BATCH_ID_MAX = 2**63 - 1


class StageName(NamedTuple):
    sink: str
    batch_id: int
    task: str

    def __str__(self) -> str:
        return f"{PREFIX}{self.sink}/{self.batch_id}/{self.task}"


def stage_name(sink: str, batch_id: int, task: str) -> str:
    """The transactional id of one attempt at one task. `BrokerError` if it cannot be one."""
    check_sink(sink)
    check_batch_id(batch_id)
    if not 1 <= len(task) <= TASK_CHARS_MAX or not task.isprintable() or "/" in task:
        raise BrokerError(
            Reason.INVALID_TRANSACTION_STATE,
            f"a task has 1 to {TASK_CHARS_MAX} printable characters, no slash: {task!r}",
        )
    return str(StageName(sink, batch_id, task))


def read_stage_name(name: str) -> StageName | None:
    """Whose stage a transactional id is, None if it is none."""
    if not name.startswith(PREFIX):
        return None
    sink, *rest = name.removeprefix(PREFIX).rsplit("/", 2)
    if len(rest) != 2 or not (rest[0].isascii() and rest[0].isdigit()) or len(rest[0]) > len(str(BATCH_ID_MAX)):
        return None
    return StageName(sink, int(rest[0]), rest[1])


def check_sink(sink: str) -> None:
    if not 1 <= len(sink) <= SINK_CHARS_MAX or not sink.isprintable():
        raise BrokerError(
            Reason.INVALID_TRANSACTION_STATE,
            f"a sink's name has 1 to {SINK_CHARS_MAX} printable characters, not {sink[:60]!r}",
        )


def check_batch_id(batch_id: int) -> None:
    if not 0 <= batch_id <= BATCH_ID_MAX:
        raise BrokerError(Reason.INVALID_TRANSACTION_STATE, f"a batch id is 0 or more, not {batch_id}")
