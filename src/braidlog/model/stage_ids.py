"""Names of stages: the transactional id identifies the sink, the batch and the task of staged records.

Writers of a stage and its coordinator share this form.
Invariant: a name belongs to one sink and one batch only. Two attempts at one task have different names.

    braidlog.sink/<sink>/<batch id>/<task>        the sink's name may contain slashes, the last two parts may not
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
    """Return the transactional id of one attempt at one task. Raises `BrokerError` for invalid parts."""
    check_sink(sink)
    check_batch_id(batch_id)
    if not 1 <= len(task) <= TASK_CHARS_MAX or not task.isprintable() or "/" in task:
        raise BrokerError(
            Reason.INVALID_TRANSACTION_STATE,
            f"a task must have 1 to {TASK_CHARS_MAX} printable characters and no slash, not {task!r}",
        )
    return str(StageName(sink, batch_id, task))


def read_stage_name(name: str) -> StageName | None:
    """Parse a transactional id; None if it does not name a stage."""
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
            f"a sink's name must have 1 to {SINK_CHARS_MAX} printable characters, not {sink[:60]!r}",
        )


def check_batch_id(batch_id: int) -> None:
    if not 0 <= batch_id <= BATCH_ID_MAX:
        raise BrokerError(Reason.INVALID_TRANSACTION_STATE, f"a batch id must be 0 or more, not {batch_id}")
