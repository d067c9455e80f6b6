"""The command `braid`: arguments in, sentences and exit codes out.

Knows: names of commands and where each lives; which error is which exit code. Refuses to know: what any command does.
Invariant: `braid --help` imports click and nothing else of weight; an error a person can act on is one line, never a traceback.

| exit code | meaning                                                          |
|-----------|------------------------------------------------------------------|
| 0         | done; or: sound                                                  |
| 1         | the answer is no: damage was found, not ready, not as expected   |
| 2         | wrong usage                                                      |
| 3         | refused: no such topic or folder, not allowed, in use            |
| 4         | the disk or the data is broken                                   |
| 5         | no server was reached, or it gave no answer                      |
| 6         | it may be well: it did not answer in time (`braid health`)       |
| 130       | interrupted                                                      |
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from braidlog.client.errors import ClientError

OK, NO, USAGE, REFUSED, FAULT, UNREACHED, SLOW, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
HELP_WIDTH_MAX = 100
EXTRAS = dict.fromkeys(("pyspark", "pyarrow", "pandas"), "spark,lake") | dict.fromkeys(
    ("deltalake", "obstore", "pyiceberg"), "lake"
)
"""Packages that a plain install lacks, and the extra that has each."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and one sentence, and imports one only to run it."""

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str]], **attrs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **attrs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, and what was perhaps meant."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches  # noqa: PLC0415 - for who has mistyped

            near = get_close_matches(args[0], self.list_commands(ctx), 3)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table too: a person who presses Tab waits for it."""
        named = [
            CompletionItem(name, help=sentence)
            for name, (_, sentence) in self._lazy.items()
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own
        """As click does it, but from the table: asking each command for its sentence would import them all."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self._lazy.items()])


class Program(LazyGroup):
    """The outermost group: its commands in sections; where an error becomes a line and an exit code."""

    def __init__(self, *args: Any, sections: dict[str, dict[str, tuple[str, str]]], **attrs: Any) -> None:  # noqa: ANN401 - click's own
        lazy = {name: command for section in sections.values() for name, command in section.items()}
        super().__init__(*args, lazy=lazy, **attrs)
        self.sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own
        """By what a person wants to do; the sentences of all sections begin in one column."""
        width = max(map(len, self._lazy))
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), sentence) for name, (_, sentence) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        from braidlog.client.errors import ClientError  # noqa: PLC0415 - not for --help
        from braidlog.model.errors import BrokerError, ProtocolError, StorageFault  # noqa: PLC0415

        try:
            return super().invoke(ctx)
        except BrokerError as error:
            say(str(error))
            ctx.exit(REFUSED)
        except (StorageFault, ProtocolError) as error:
            say(str(error))
            ctx.exit(FAULT)
        except ClientError as error:
            say(_spoken(error))
            ctx.exit(UNREACHED if error.is_unreached else REFUSED)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRAS:
                raise
            say(f"{package} is not installed: pip install 'braidlog[{EXTRAS[package]}]'")
            ctx.exit(REFUSED)
        except BrokenPipeError:
            # Who reads has enough (`| head`): no error. What is still to be flushed at exit must not find the pipe again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(OK)
        except (KeyboardInterrupt, click.Abort):
            say("interrupted")
            ctx.exit(INTERRUPTED)


def _spoken(error: "ClientError") -> str:
    """With what to do next, where only the command line knows it."""
    from braidlog.client.errors import Refusal, RefusedError, SignInError  # noqa: PLC0415 - not for --help

    words = str(error)
    if isinstance(error, SignInError):
        words += "; check who was named and the file of its token, or make a new token: `braid user token`"
    not_allowed = isinstance(error, RefusedError) and error.reason is Refusal.NOT_ALLOWED
    return f"not allowed: {words}" if not_allowed and not words.startswith(Refusal.NOT_ALLOWED.value.text) else words


def say(sentence: str) -> None:
    """One line on stderr."""
    click.echo(f"braid: {sentence}", err=True)


def end(code: int, sentence: str = "") -> NoReturn:
    """Leave with this exit code, and say why unless it was said."""
    if sentence:
        say(sentence)
    sys.exit(code)


def _print_version(ctx: click.Context, _param: click.Parameter, *, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from braidlog import __version__  # noqa: PLC0415 - not for --help
    from braidlog.codec import is_compiled  # noqa: PLC0415

    kernel = "compiled" if is_compiled() else "pure Python"
    python = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"braidlog {__version__} (kernel {kernel}, Python {python})")
    ctx.exit()


@click.group(
    cls=Program,
    sections={
        "Run a node": {
            "dev": ("braidlog.cli.node.serve:dev", "Run a node on this machine and say how to reach it."),
            "serve": ("braidlog.cli.node.serve:serve", "Run a node: one port per protocol."),
            "config": (
                "braidlog.cli.node.serve:config",
                "Settings of a node: show each with its origin, check a file, write one.",
            ),
            "health": ("braidlog.cli.node.health:health", "Ask a node whether it is ready."),
            "doctor": ("braidlog.cli.node.doctor:doctor", "Check this machine: Python, disk, ports, Java, packages."),
            "generate": (
                "braidlog.cli.generate:generate",
                "Print files for systemd, Kubernetes, Compose, Prometheus, Grafana.",
            ),
        },
        "Topics and records": {
            "topic": ("braidlog.cli.topic:topic", "Make, list, describe, change, trim and delete topics."),
            "produce": ("braidlog.cli.records.produce:produce", "Write records: lines, files, JSON, bytes."),
            "consume": ("braidlog.cli.records.consume:consume", "Print the records that are there."),
            "tail": ("braidlog.cli.records.consume:tail", "Print records as they come."),
            "schema": ("braidlog.cli.schema:schema", "Schemas of records: list, get, register, check, delete."),
            "table": ("braidlog.cli.table:table", "Topics that are tables: how far each has come."),
            "demo": ("braidlog.cli.demo:demo", "Make events to try things out with."),
        },
        "Groups and transactions": {
            "group": ("braidlog.cli.group:group", "Consumer groups: list, lag, reset offsets, delete."),
            "txn": ("braidlog.cli.txn:txn", "Transactions: list, describe and abort them."),
        },
        "Keys and values": {
            "kv": ("braidlog.cli.kv:kv", "The key-value store: get, set, count, lists, hashes, watch."),
        },
        "Users and access": {
            "user": ("braidlog.cli.user:user", "Users with passwords: create, list and delete them; make tokens."),
            "rule": ("braidlog.cli.rule:rule", "Who may do what: list, add and delete rules."),
            "acl": ("braidlog.cli.acl:acl", "The same as `rule`: allow, deny, list and remove."),
            "quota": (
                "braidlog.cli.quota:quota",
                "Limits on the rate of users, clients and addresses: set, list, remove.",
            ),
        },
        "Cluster": {
            "cluster": ("braidlog.cli.cluster:cluster", "Nodes, who leads which partition, what is missing."),
            "node": ("braidlog.cli.node.describe:node", "Version, memory, ports, folders and health of each node."),
        },
        "Data folder and back-up": {
            "log": ("braidlog.cli.log:log", "Look into a data folder, check every byte of it, repair it."),
            "backup": ("braidlog.cli.backup:backup", "Back a node up while it runs; list, verify and prune back-ups."),
            "restore": ("braidlog.cli.backup.restore:restore", "Make a data folder from a back-up."),
        },
        "Spark": {
            "spark": ("braidlog.cli.spark:spark", "Spark, set up for braidlog: a prompt, flags for a cluster."),
            "pipeline": (
                "braidlog.cli.pipeline:pipeline",
                "Turn a topic into tables, topics and keys with a Spark job.",
            ),
        },
        "Measure and debug": {
            "bench": ("braidlog.cli.node.bench:bench", "A quick measurement of a running node."),
            "wire": ("braidlog.cli.wire:wire", "Send bytes by hand, watch, decode and fuzz the protocols."),
            "support": ("braidlog.cli.support:support", "Collect what a helper needs to see: one archive, no secrets."),
        },
        "This command line": {
            "profile": ("braidlog.cli.profile:profile", "Keep servers under names: create, use, list, delete."),
            "completion": (
                "braidlog.cli.completion:completion",
                "Print a script that completes commands in your shell.",
            ),
        },
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH_MAX},
    epilog="""\b
Example:
  braid dev                              a node on this machine
  braid demo clicks --rate 10            events, ten a second
  braid tail clicks                      every event as it comes
  braid log verify ./braid-data          is every byte what was written?

\b
Exit codes:
  0  done        1  the answer is no: damage found     2  wrong usage
  3  refused     4  the disk or the data is broken     130  interrupted
                 5  no server, or no answer          6  no answer in time (health)

Colours follow NO_COLOR; progress and hints are shown on a terminal only.
""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, param, value: _print_version(ctx, param, value=value),
    help="Show version, kernel and Python, and exit.",
)
def main() -> None:
    """braidlog: a commit log that installs with pip. Records go in at the end of a topic, get a number that never
    changes, and are kept as they were written.

    A node (`braid dev`, `braid serve`) keeps it in a folder and speaks six protocols; the commands here talk to a node, found by
    --server or BRAID_SERVER. A Python program can also open the folder itself, with `braidlog.Log("data")`.
    """
