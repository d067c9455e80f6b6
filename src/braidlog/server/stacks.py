"""Where threads and tasks of this process are: lines of source, never values."""

import asyncio
import sys
import threading
import traceback
from typing import Final

FRAMES_MAX: Final = 40
TASKS_MAX: Final = 200


def stacks() -> dict[str, str]:
    """By thread, then by task; of many tasks some, and how many were left out."""
    names = {each.ident: each.name for each in threading.enumerate()}
    found = {
        f"thread {names.get(number, number)}": "".join(traceback.format_stack(frame, FRAMES_MAX))
        for number, frame in sys._current_frames().items()  # noqa: SLF001 - documented, in spite of its name
    }
    tasks = sorted(asyncio.all_tasks(), key=lambda each: each.get_name())
    for task in tasks[:TASKS_MAX]:
        frames = task.get_stack(limit=FRAMES_MAX)
        text = "".join(line for frame in frames for line in traceback.format_stack(frame, 1))
        name = f"task {task.get_name()}"
        found[name] = found.get(name, "") + text
    if len(tasks) > TASKS_MAX:
        found["tasks left out"] = str(len(tasks) - TASKS_MAX)
    return found
