"""`braid wire send`: sends annotated hex to a server and compares the answers."""

from typing import Any

import click

from braidlog.cli import NO, end
from braidlog.cli.terminal.arguments import pairs
from braidlog.cli.terminal.connection import read_token
from braidlog.cli.terminal.output import TEXT_OR_JSON, paint, print_json
from braidlog.cli.wire.options import DIALECT, SERVER, check_split, read_text
from braidlog.model.errors import BrokerError, Reason
from braidlog.tools.wire.annotated_hex import NotationError, encode
from braidlog.tools.wire.capture.message_format import message_object, sentence
from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.examples import example
from braidlog.tools.wire.script import Case, Send, read_script
from braidlog.tools.wire.script_runner import Connection, Outcome, run
from braidlog.wire.cursus import DIALECT as CURSUS
from braidlog.wire.mayfly import DIALECT as MAYFLY


@click.command(
    epilog=f"""\b
Example, a file that is also a test (mayfly):
  > CA FE 01 04 u32 7 u32 0                 # PING, request 7
  < CA FE 01 01 u32 7 ?? ?? ?? ??           # OK, any length
\b
  braid wire send ping.wire --server :{MAYFLY.port}
  braid wire send --example cursus --server :{CURSUS.port}
  braid wire send talk.log --server :{CURSUS.port}   log of `braid wire tap --hex` or `braid serve --wire-log`
\b
Exit codes: 0 as expected, 1 different, 2 wrong usage, 3 no server or no such file.
"""
)
@click.argument("file", required=False)
@SERVER
@DIALECT
@click.option(
    "--example", "example_of", metavar="DIALECT", help="Send an example conversation of braidlog instead of FILE."
)
@click.option(
    "--case", "cases", multiple=True, metavar="NAME", help="Only this case, or connection of a log; repeatable."
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.001), default=5.0, show_default=True, help="Seconds to wait for an answer."
)
@click.option(
    "--compare",
    type=click.Choice(["auto", "bytes", "messages"]),
    default="auto",
    show_default=True,
    help="`messages`: ignore times, ports and ids. `auto`: messages for a log, else bytes.",
)
@click.option("--split", default="", metavar="N|random", help="Send in pieces of N bytes, or of random size.")
@click.option("--let", "given", multiple=True, metavar="NAME=TEXT", help="Value of $NAME; repeatable.")
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File whose first line replaces ** in a log.",
)
@click.option("--dry-run", is_flag=True, help="Print the bytes in hex without sending them.")
@TEXT_OR_JSON
def send(  # noqa: PLR0913 - one parameter an option
    *,
    file: str | None,
    server: tuple[str | None, Address],
    dialect: str | None,
    example_of: str | None,
    cases: tuple[str, ...],
    timeout: float,
    compare: str,
    split: str,
    given: tuple[str, ...],
    secret_file: str | None,
    dry_run: bool,
    output: str,
) -> None:
    """Send the bytes of FILE (`-` is standard input) and compare the answers with the expected answers.

    FILE is annotated hex: lines with > are sent, lines with < are expected. Each case (== name) has its own connection. If
    FILE expects no answers, the received bytes are printed in a form that can be added to FILE.
    """
    found = _cases(file, example_of, cases)
    secret = read_token(secret_file)
    variables = {name: _variable(value) for name, value in pairs(given, "--let").items()}
    if dry_run:
        _print_bytes(found, variables, secret)
        return
    check_split(split)
    scheme, address = server
    to = Connection(
        address.host,
        address.port,
        timeout,
        split,
        None if secret is None else secret.encode(),
        dialect or scheme or example_of,
    )
    outcomes = [_run(case, to, variables, compare) for case in found]
    if output == "json":
        print_json(
            {
                "as_expected": all(each.is_as_expected for each in outcomes),
                "cases": [_object(each) for each in outcomes],
            }
        )
    else:
        for case, outcome in zip(found, outcomes, strict=True):
            _print(case, outcome, file or "example")
    if not all(each.is_as_expected for each in outcomes):
        end(NO)


def _cases(file: str | None, example_of: str | None, names: tuple[str, ...]) -> list[Case]:
    if (file is None) == (example_of is None):
        raise click.UsageError("nothing to send: pass a FILE, or --example DIALECT")
    try:
        text = example(example_of) if example_of is not None else read_text(file or "-")
        cases = read_script(text)
    except (NotationError, KeyError) as error:
        raise click.UsageError(f"{file or example_of}: {error}") from error
    except ValueError as error:
        raise click.UsageError(f"{file}: {error}") from error
    if names:
        cases = [case for case in cases if case.name in names]
    if not cases or not any(isinstance(step, Send) for case in cases for step in case.steps):
        raise click.UsageError(
            "nothing to send: record the wire log with the bytes of its messages (--hex, --wire-hex)"
        )
    return cases


def _variable(text: str) -> int | bytes:
    return int(text) if text.lstrip("-").isdigit() else text.encode()


def _print_bytes(cases: list[Case], variables: dict[str, int | bytes], secret: str | None) -> None:
    for case in cases:
        for step in case.steps:
            if isinstance(step, Send):
                try:
                    data = encode(step.items, variables, step.line, None if secret is None else secret.encode())
                except NotationError as error:
                    raise click.UsageError(str(error)) from error
                click.echo(data.hex(" ").upper())


def _run(case: Case, to: Connection, variables: dict[str, int | bytes], compare: str) -> Outcome:
    as_messages = compare == "messages" or (compare == "auto" and case.dialect is not None)
    try:
        return run(case, to, variables, as_messages=as_messages)
    except NotationError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise BrokerError(Reason.UNAVAILABLE, f"{to.host}:{to.port}: {error.strerror or error}") from error


def _print(case: Case, outcome: Outcome, file: str) -> None:
    name = f" {case.name}" if case.name else ""
    difference = outcome.difference
    if difference is not None:
        click.echo(f"{paint('DIFFERENT', 'red')}{name}  {file}:{difference.line}: {difference.message}")
        if difference.expected or difference.received:
            click.echo(f"  expected  {difference.expected}")
            click.echo(f"  received  {difference.received}")
        if difference.position is not None:
            click.echo(f"            {'   ' * (difference.position % 16)}^^")
        return
    if case.expects:
        click.echo(f"{paint('as expected', 'green')}{name}")
        return
    for data in outcome.answers:
        for at in range(0, len(data), 16):
            click.echo(f"< {data[at : at + 16].hex(' ').upper()}")
    for seen in outcome.messages:
        click.echo(f"# {sentence(seen)}")
    click.echo(
        f"# {sum(map(len, outcome.answers))} bytes received{', then the server closed the connection' if outcome.closed else ''}"
    )


def _object(outcome: Outcome) -> dict[str, Any]:
    difference = outcome.difference
    found: dict[str, Any] = {
        "case": outcome.case,
        "as_expected": outcome.is_as_expected,
        "sent_bytes": outcome.sent_bytes,
        "answers": [data.hex() for data in outcome.answers],
        "messages": [message_object(seen) for seen in outcome.messages],
        "closed": outcome.closed,
    }
    if difference is not None:
        found["difference"] = {name: getattr(difference, name) for name in difference.__struct_fields__}
    return found
