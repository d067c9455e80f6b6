"""`braid wire fuzz`: sends damaged requests to a server and checks its health."""

from pathlib import Path
from typing import Any

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.terminal.output import TEXT_OR_JSON, paint, print_json, size
from braidlog.cli.wire.options import DIALECT, SERVER, dialect_of
from braidlog.model.errors import BrokerError, Reason
from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.fuzzer import FuzzSettings, Report, as_script
from braidlog.tools.wire.fuzzer import fuzz as fuzz_server
from braidlog.wire.cursus import DIALECT as CURSUS
from braidlog.wire.mayfly import DIALECT as MAYFLY


@click.command(
    epilog=f"""\b
Example:
  braid wire fuzz --server {MAYFLY.local_url} --runs 10000 --seed 1 --pid $(pidof -s braid)
  braid wire fuzz --server :{CURSUS.port} --dialect cursus --out failing.wire && echo healthy
  braid wire send failing.wire --server :{CURSUS.port}        repeat the failed run
\b
Exit codes: 0 healthy, 1 failed, 2 wrong usage, 3 no server.
"""
)
@SERVER
@DIALECT
@click.option(
    "--runs", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of damaged conversations."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--first-run", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first run.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=10.0,
    show_default=True,
    help="Seconds to wait for a valid answer.",
)
@click.option("--pid", type=click.IntRange(min=1), help="Local server process whose memory is watched.")
@click.option(
    "--memory-mb",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Maximum memory growth of the process.",
)
@click.option("--out", metavar="FILE", help="File for a failed run.  [default: standard output]")
@TEXT_OR_JSON
def fuzz(
    *,
    server: tuple[str | None, Address],
    dialect: str | None,
    pid: int | None,
    memory_mb: int,
    out: str | None,
    output: str,
    **how: Any,  # noqa: ANN401 - the other fields of FuzzSettings
) -> None:
    """Send conversations with one damaged request each, and check that the server answers or closes the connection.

    After each run a new connection must get a correct answer. A failed run is printed as annotated hex for `braid wire
    send`. Use a server whose data you can lose: a damaged request may still be valid.
    """
    scheme, address = server
    spoken = dialect_of(dialect, scheme)
    memory = {"pid": pid or 0, "memory_growth_bytes_max": memory_mb * 1024 * 1024}
    settings = FuzzSettings(spoken, address.host, address.port, **memory, **how)
    try:
        report = fuzz_server(settings)
    except OSError as error:
        raise BrokerError(Reason.UNAVAILABLE, f"{address.host}:{address.port}: {error.strerror or error}") from error
    script = None if report.failure is None else as_script(report.failure, settings)
    if out is not None and script is not None:
        Path(out).write_text(script, encoding="utf-8")
    if output == "json":
        print_json(_object(report, settings, script))
    else:
        _print(report, settings, None if out is not None else script)
    if report.failure is not None:
        end(NO)


def _print(report: Report, settings: FuzzSettings, script: str | None) -> None:
    grown = (
        "not watched (--pid)"
        if report.memory_growth_bytes is None
        else f"{size(max(report.memory_growth_bytes, 0))} more"
    )
    click.echo(
        f"{settings.dialect}: {report.runs} runs of seed {settings.seed}: {report.answered} answered, {report.closed} closed, "
        f"{report.silent} silent; memory {grown}"
    )
    if report.failure is None:
        click.echo(paint("healthy", "green"))
        return
    click.echo(f"{paint('FAILED', 'red')} in run {report.failure.run.number}: {report.failure.why}")
    if script is not None:
        click.echo(script, nl=False)


def _object(report: Report, settings: FuzzSettings, script: str | None) -> dict[str, Any]:
    found = {"dialect": settings.dialect, "seed": settings.seed, **msgspec.structs.asdict(report)}
    found |= {"well": found.pop("failure") is None}
    if report.failure is not None:
        found["failure"] = {"run": report.failure.run.number, "why": report.failure.why, "script": script}
    return found
