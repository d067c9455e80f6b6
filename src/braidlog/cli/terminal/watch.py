"""`--watch`: a command that looks, again and again.

Knows: how a screen is drawn over. Refuses to know: what is shown. Invariant: on a terminal the newest answer stands where the
last one stood; into a pipe each goes after the other, as JSON on one line each.
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
    """What is printed, in the colours that there would be."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def watched(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has --watch and --interval. Stands below `with_client`: one connection serves all rounds."""

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

    run = click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")(run)
    return click.option(
        "--interval",
        type=click.FloatRange(0.1, 3600),
        default=INTERVAL_SECONDS,
        show_default=True,
        help="Seconds between two looks of --watch.",
    )(run)


def wait(seconds: float) -> None:
    """Until the next look, or Ctrl-C."""
    threading.Event().wait(seconds)


def _printed(
    command: Callable[..., None], arguments: tuple[Any, ...], options: dict[str, Any], *, is_terminal: bool
) -> str:
    captured = _Captured(is_terminal=is_terminal)
    with redirect_stdout(captured):
        try:
            command(*arguments, **options)
        except SystemExit as ended:  # an answer that is a no: the next one may be another
            if not isinstance(ended.code, int):
                raise
    return captured.getvalue()


def _drawn(text: str, interval: float, *, is_first: bool) -> str:
    """Over what was there; of more lines than the screen has, those that fit and how many more there are."""
    lines = [f"every {interval:g} s, until Ctrl-C: {moment(SystemClock().now_ms())}", *text.splitlines()]
    height = shutil.get_terminal_size().lines - 1
    if len(lines) > height:
        lines = [*lines[: height - 1], f"… and {len(lines) - height + 1} lines more"]
    shown = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
    return f"{_CLEAR if is_first else ''}{_HOME}{shown}{_CLEAR_BELOW}"
