"""`braid health`: queries /readyz on the admin port of a node."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import click
import msgspec

from braidlog.cli import FAULT, NO, SLOW, UNREACHED, end
from braidlog.cli.terminal.connection import read_token
from braidlog.cli.terminal.output import OUTPUT, paint, print_json, print_table, shown
from braidlog.cli.terminal.secrets import not_typed
from braidlog.model.reporting.node_report import LOCAL_ADMIN_URL

ANSWER_BYTES_MAX = 1024 * 1024
LOOKING_SHARE = 0.8
"""Share of the timeout after which the console answers with the checks that are complete."""


COLOURS = {"ready": "green", "slow": "yellow"}


class Check(msgspec.Struct, frozen=True):
    """A check of the node."""

    name: str
    ok: bool
    reason: str | None = None


class Readiness(msgspec.Struct, frozen=True):
    """Output of `braid health -o json`: the answer of the node."""

    status: str
    checks: list[Check]


@click.command(epilog="Example: until braid health --quiet; do sleep 1; done")
@click.option(
    "--url",
    envvar="BRAID_ADMIN_URL",
    show_envvar=True,
    default=LOCAL_ADMIN_URL,
    show_default=True,
    callback=not_typed,
    help="URL of the admin port.",
)
@click.option(
    "--token-file",
    envvar="BRAID_ADMIN_TOKEN_FILE",
    show_envvar=True,
    type=click.Path(exists=True),
    help="File with the admin token.",
)
@click.option(
    "--timeout", type=click.FloatRange(0.01, 3600), default=1.0, show_default=True, help="Timeout in seconds."
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; set only the exit code.")
@OUTPUT
def health(url: str, token_file: str | None, timeout: float, output: str, *, quiet: bool) -> None:
    """Check on the admin port whether a node is ready to serve.

    Exits with 0 if the node is ready, 1 if not, 5 if no server is reachable, and 6 on a timeout (a busy node may be
    healthy). Dead nodes and under-replicated partitions of the cluster are listed, but do not change the exit code.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url is http://HOST:PORT, not {url!r}")
    within_ms = max(int(timeout * 1000 * LOOKING_SHARE), 1)
    answer = _ask(f"{url.rstrip('/')}/readyz?within_ms={within_ms}", read_token(token_file), timeout)
    if not quiet:
        _print(answer, output)
    if answer.status != "ready":
        end(SLOW if answer.status == "slow" else NO)


def _ask(url: str, token: str | None, timeout: float) -> Readiness:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310 - checked above
    # Not through a proxy of the environment: the admin port is local, and no proxy may see its token.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as found:
            body = found.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read(ANSWER_BYTES_MAX)  # 503 has a body of the same form
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            end(SLOW, f"{url} did not answer within {timeout:g} s")
        why = getattr(reason, "strerror", None) or reason
        end(
            UNREACHED, f"{url} cannot be reached: {why}; start a node, or pass the address of its admin port with --url"
        )
    return _read(url, body)


def _read(url: str, body: bytes) -> Readiness:
    try:
        return msgspec.json.decode(body, type=Readiness)
    except msgspec.DecodeError:
        end(FAULT, f"{url} is not the admin port of a node: it answered {shown(body[:60])}")


def _print(answer: Readiness, output: str) -> None:
    if output == "json":
        print_json(answer)
        return
    click.echo(paint(answer.status, COLOURS.get(answer.status, "red")))
    if answer.checks:
        print_table(["", "CHECK", "REASON"], (row for each in answer.checks for row in _rows(each)))


def _rows(check: Check) -> Iterator[list[str]]:
    """Yield one row per line of the reason."""
    first, *more = (check.reason or "").split("\n")
    yield ["ok" if check.ok else "no", check.name, first]
    yield from (["", "", line] for line in more)
