"""What the commands of `braid pipeline` share: the project, Spark's master, progress, an end by Ctrl-C.

Knows: how they are spelled and shown. Refuses to know: what is done with them.
Invariant: progress goes to stderr: one line per stage that changes in place on a terminal, plain lines elsewhere.
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
MASTER = click.option("--master", metavar="URL", help="Spark's master.  [default: as pipeline.toml says, local[*]]")
CONF = click.option("--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's; repeatable.")
ADMIN = click.option(
    "--admin", metavar="URL", help="Admin port to tell progress to; '' for none.  [default: pipeline.toml]"
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
        pass  # a pipeline that runs already is refused now, and not when Java has started
    with started(project, session(project, wanted)) as spark:
        yield spark


@contextmanager
def started(project: "Project", session: "AbstractContextManager[SparkSession]") -> "Iterator[SparkSession]":
    """Spark, whose words go to a file; what it lacks is told in a line."""
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
    """Whoever is started within writes its complaints to a file: Java's, and those of the workers it starts, are no answer to a
    person. Spark's workers tell a whole story whenever a query ends."""
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
    """Ctrl-C, or SIGTERM, asks to stop; asked twice, it does not wait. A stage that fails is a line and an exit code."""
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
            say(f"the whole story is in {LOG} of the pipeline's storage")
        end(NO if error.by_expectation else FAULT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress() -> "Iterator[Callable[[StageProgress], None]]":
    """Shows the progress of stages."""
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
