"""Options, progress output and interrupts that the commands of `braid pipeline` share.

Progress goes to stderr: one line per stage, updated in place on a terminal, plain lines elsewhere.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from braidlog.cli import FAULT, INTERRUPTED, NO, end, say
from braidlog.cli.terminal.arguments import pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from braidlog.spark.pipeline.operations import Wishes
    from braidlog.spark.pipeline.progress import StageProgress
    from braidlog.spark.pipeline.project import Project
    from braidlog.spark.pipeline.stage_runner import StopRequest

FOLDER = click.argument("folder", type=click.Path(file_okay=False), default=".")
MASTER = click.option("--master", metavar="URL", help="Spark master.  [default: from pipeline.toml, local[*]]")
CONF = click.option("--conf", "conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; repeatable.")
ADMIN = click.option(
    "--admin", metavar="URL", help="Admin port to which progress is reported; '': none.  [default: from pipeline.toml]"
)
LOG: Final = "spark.log"
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
TOKEN: Final = "BRAID_ADMIN_TOKEN"  # noqa: S105 - the name of a variable


def wishes(
    master: str | None,
    conf: tuple[str, ...],
    admin: str | None = "",
    *,
    once: bool = True,
    stages: tuple[str, ...] = (),
) -> "Wishes":
    from braidlog.spark.pipeline.operations import Wishes  # noqa: PLC0415 - Spark, not for --help

    return Wishes(master or "", pairs(conf, "--conf"), admin, os.environ.get(TOKEN, ""), once, frozenset(stages))


@contextmanager
def spark_of(project: "Project", wanted: "Wishes") -> "Iterator[SparkSession]":
    from braidlog.spark.pipeline.ledger import Ledger  # noqa: PLC0415 - not for --help
    from braidlog.spark.pipeline.operations import session  # noqa: PLC0415

    with Ledger(project.storage).alone():
        pass  # refuse a pipeline that already runs before Java starts
    with started(project, session(project, wanted)) as spark:
        yield spark


@contextmanager
def started(project: "Project", session: "AbstractContextManager[SparkSession]") -> "Iterator[SparkSession]":
    """Start Spark with its output in a file; report missing requirements in one line."""
    from braidlog.spark.options import OptionError  # noqa: PLC0415 - not for --help
    from braidlog.spark.sessions import JavaMissingError  # noqa: PLC0415

    with ExitStack() as stack:
        try:
            with words_of_java(project.storage / LOG):
                spark = stack.enter_context(session)
        except (JavaMissingError, ImportError) as error:
            raise click.ClickException(str(error)) from error
        try:
            yield spark
        except OptionError as error:
            end(FAULT, str(error))


@contextmanager
def words_of_java(path: Path) -> Iterator[None]:
    """Redirect stderr of child processes to a file: Java and Spark's workers log stack traces whenever a query ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_name(f"{LOG}.1"))
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def ending_well() -> "Iterator[StopRequest]":
    """Stop on Ctrl-C or SIGTERM, immediately on the second; report a failed stage as one line and an exit code."""
    from braidlog.spark.pipeline.stage_runner import StageFailed, Stopped, StopRequest  # noqa: PLC0415 - Spark, not for --help

    stop = StopRequest()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()

    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except Stopped:
        end(INTERRUPTED, "stopped; the next run resumes where it stopped")
    except StageFailed as error:
        say(str(error))
        if not error.by_expectation:
            say(f"see {LOG} in the pipeline's storage for details")
        end(NO if error.by_expectation else FAULT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress() -> "Iterator[Callable[[StageProgress], None]]":
    """Show the progress of stages."""
    if not sys.stderr.isatty():
        yield lambda found: click.echo(line(found), err=True) if worth_a_line(found) else None
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    stages: dict[str, StageProgress] = {}
    with Live(console=Console(stderr=True), refresh_per_second=4) as live:

        def show(found: "StageProgress") -> None:
            if found.batch is not None or found.stage not in stages or found.error:
                stages[found.stage] = found
            live.update(Text("\n".join(line(each) for each in stages.values())))

        yield show


def worth_a_line(found: "StageProgress") -> bool:
    return bool(found.rows or found.error)


def line(found: "StageProgress") -> str:
    """`silver         batch 3  1,200 rows  400/s  lag 0`."""
    parts = [f"{found.stage:<14}"]
    if found.batch is None:
        parts.append(found.state)
    else:
        parts += [f"batch {found.batch}", f"{found.rows:,} rows", f"{found.rows_per_second:,.0f}/s"]
        if found.lag is not None:
            parts.append(f"lag {found.lag:,}")
    return "  ".join(parts)
