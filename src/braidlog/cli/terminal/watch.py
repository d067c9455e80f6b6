"""`--watch`: repeat a command at an interval.

On a terminal the newest output replaces the previous one; into a pipe outputs follow each other, JSON on one line each.
"""

import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from io import StringIO
from typing import Any, Final

import click

from braidlog.cli.terminal.output import be_brief, moment
from braidlog.model.clock import SystemClock

INTERVAL_SECONDS: Final = 2.0
_CLEAR, _HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"


class _Captured(StringIO):
    """Captures output with the colours of the real stream."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def watched(command: Callable[..., None]) -> Callable[..., None]:
    """Add --watch and --interval. Apply it below `with_client`, so that all rounds share one connection."""

    @wraps(command)
    def run(*arguments: Any, watch: bool, interval: float, **options: Any) -> None:  # noqa: ANN401 - click's own
        if not watch:
            command(*arguments, **options)
            return
        be_brief()
        is_terminal, is_first = sys.stdout.isatty(), True
        while True:
            text = _printed(command, arguments, options, is_terminal=is_terminal)
            click.echo(_drawn(text, interval, is_first=is_first) if is_terminal else text, nl=False)
            sys.stdout.flush()
            is_first = False
            wait(interval)

    run = click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")(run)
    return click.option(
        "--interval",
        type=click.FloatRange(0.1, 3600),
        default=INTERVAL_SECONDS,
        show_default=True,
        help="Seconds between refreshes of --watch.",
    )(run)


def wait(seconds: float) -> None:
    """Wait for the next refresh, or Ctrl-C."""
    threading.Event().wait(seconds)


def _printed(
    command: Callable[..., None], arguments: tuple[Any, ...], options: dict[str, Any], *, is_terminal: bool
) -> str:
    captured = _Captured(is_terminal=is_terminal)
    with redirect_stdout(captured):
        try:
            command(*arguments, **options)
        except SystemExit as ended:  # a negative result: the next one may differ
            if not isinstance(ended.code, int):
                raise
    return captured.getvalue()


def _drawn(text: str, interval: float, *, is_first: bool) -> str:
    """Return the text that overwrites the screen, cut to its height with the number of further lines."""
    lines = [f"every {interval:g} s, until Ctrl-C: {moment(SystemClock().now_ms())}", *text.splitlines()]
    height = shutil.get_terminal_size().lines - 1
    if len(lines) > height:
        lines = [*lines[: height - 1], f"… and {len(lines) - height + 1} lines more"]
    shown = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
    return f"{_CLEAR if is_first else ''}{_HOME}{shown}{_CLEAR_BELOW}"
