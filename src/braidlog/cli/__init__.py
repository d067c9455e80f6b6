"""The command `braid`: its commands, exit codes and error output.

Maps each command name to the module that implements it, and each error to an exit code.
`braid --help` imports only click. An error that the operator can act on is one line, never a traceback.

| exit code | meaning                                                          |
|-----------|------------------------------------------------------------------|
| 0         | success; or: no damage found                                     |
| 1         | negative result: damage found, not ready, unexpected answer      |
| 2         | wrong usage                                                      |
| 3         | refused: no such topic or folder, not authorized, in use         |
| 4         | disk failure or corrupt data                                     |
| 5         | no server reachable, or no answer                                |
| 6         | no answer in time; the node may be healthy (`braid health`)      |
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
"""Optional packages, and the extra that installs each."""


class LazyGroup(click.Group):
    """Command group that imports a command only when it runs."""

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
        """Resolve a command; suggest similar names for an unknown one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches  # noqa: PLC0415 - only for unknown commands

            near = get_close_matches(args[0], self.list_commands(ctx), 3)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete from the table, without importing commands: completion has to be fast."""
        named = [
            CompletionItem(name, help=sentence)
            for name, (_, sentence) in self._lazy.items()
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own
        """List commands from the table: click's own way would import all of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self._lazy.items()])


class Program(LazyGroup):
    """Top-level group: lists commands in sections and turns errors into one line and an exit code."""

    def __init__(self, *args: Any, sections: dict[str, dict[str, tuple[str, str]]], **attrs: Any) -> None:  # noqa: ANN401 - click's own
        lazy = {name: command for section in sections.values() for name, command in section.items()}
        super().__init__(*args, lazy=lazy, **attrs)
        self.sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's own
        """List commands by section, with all descriptions aligned in one column."""
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
            # The reader closed the pipe (`| head`): no error. The flush at exit must not write to the pipe again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(OK)
        except (KeyboardInterrupt, click.Abort):
            say("interrupted")
            ctx.exit(INTERRUPTED)


def _spoken(error: "ClientError") -> str:
    """Return the error's message, with the command or option that resolves it."""
    from braidlog.client.errors import Refusal, RefusedError, SignInError  # noqa: PLC0415 - not for --help

    words = str(error)
    if isinstance(error, SignInError):
        words += "; check --principal and --token-file, or create a new token: `braid user token`"
    not_allowed = isinstance(error, RefusedError) and error.reason is Refusal.NOT_ALLOWED
    return f"not allowed: {words}" if not_allowed and not words.startswith(Refusal.NOT_ALLOWED.value.text) else words


def say(sentence: str) -> None:
    """Print one line on stderr."""
    click.echo(f"braid: {sentence}", err=True)


def end(code: int, sentence: str = "") -> NoReturn:
    """Exit with `code`; print `sentence` on stderr if there is one."""
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
            "dev": ("braidlog.cli.node.serve:dev", "Run a local node for development."),
            "serve": ("braidlog.cli.node.serve:serve", "Run a node."),
            "config": (
                "braidlog.cli.node.serve:config",
                "Show, check and create settings of a node.",
            ),
            "health": ("braidlog.cli.node.health:health", "Check whether a node is ready."),
            "doctor": ("braidlog.cli.node.doctor:doctor", "Check this machine: Python, disk, ports, Java, packages."),
            "generate": (
                "braidlog.cli.generate:generate",
                "Print files for systemd, Kubernetes, Compose, Prometheus, Grafana.",
            ),
        },
        "Topics and records": {
            "topic": ("braidlog.cli.topic:topic", "List, create, describe, alter, trim and delete topics."),
            "produce": ("braidlog.cli.records.produce:produce", "Write records to a topic."),
            "consume": ("braidlog.cli.records.consume:consume", "Print the existing records of topics."),
            "tail": ("braidlog.cli.records.consume:tail", "Print new records of topics as they arrive."),
            "schema": ("braidlog.cli.schema:schema", "List, get, register, check and delete schemas."),
            "table": ("braidlog.cli.table:table", "Show the status of topics that are tables."),
            "demo": ("braidlog.cli.demo:demo", "Generate sample events."),
        },
        "Groups and transactions": {
            "group": ("braidlog.cli.group:group", "List, describe, reset and delete consumer groups."),
            "txn": ("braidlog.cli.txn:txn", "List, describe and abort transactions."),
        },
        "Keys and values": {
            "kv": ("braidlog.cli.kv:kv", "Read, write and watch keys of the key-value store."),
        },
        "Users and access": {
            "user": ("braidlog.cli.user:user", "List, create and delete users; create tokens."),
            "rule": ("braidlog.cli.rule:rule", "List, add and delete access rules."),
            "acl": ("braidlog.cli.acl:acl", "List, add and remove access rules in Kafka's words."),
            "quota": (
                "braidlog.cli.quota:quota",
                "List, set and remove quotas of users, clients and addresses.",
            ),
        },
        "Cluster": {
            "cluster": ("braidlog.cli.cluster:cluster", "Show and change nodes, leaders and replicas."),
            "node": ("braidlog.cli.node.describe:node", "Describe nodes: version, memory, ports, data and health."),
        },
        "Data folder and backup": {
            "log": ("braidlog.cli.log:log", "Inspect, verify and repair a data folder."),
            "backup": ("braidlog.cli.backup:backup", "Create, list, verify and prune backups of a node."),
            "restore": ("braidlog.cli.backup.restore:restore", "Restore a data folder from a backup."),
        },
        "Spark": {
            "spark": ("braidlog.cli.spark:spark", "Run Spark with braidlog's formats."),
            "pipeline": (
                "braidlog.cli.pipeline:pipeline",
                "Run Spark pipelines from a topic to tables, topics and keys.",
            ),
        },
        "Measure and debug": {
            "bench": ("braidlog.cli.node.bench:bench", "Measure write and read throughput of a running node."),
            "wire": ("braidlog.cli.wire:wire", "Send, record, decode and fuzz protocol messages."),
            "support": ("braidlog.cli.support:support", "Collect diagnostics."),
        },
        "This command line": {
            "profile": ("braidlog.cli.profile:profile", "Create, use, list and delete server profiles."),
            "completion": (
                "braidlog.cli.completion:completion",
                "Print a shell completion script.",
            ),
        },
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH_MAX},
    epilog="""\b
Example:
  braid dev                              a node on this machine
  braid demo clicks --rate 10            ten events per second
  braid tail clicks                      every event as it arrives
  braid log verify ./braid-data          check every byte of a data folder

\b
Exit codes:
  0  success     1  negative result: damage found      2  wrong usage
  3  refused     4  disk failure or corrupt data       130  interrupted
  5  no server   6  no answer in time (health)

NO_COLOR disables colours; progress and hints appear on a terminal only.
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
    """Run and operate braidlog, a distributed commit log with six wire protocols.

    A node (`braid dev`, `braid serve`) stores topics in a data folder. The other commands connect to the node that
    --server or BRAID_SERVER names. A Python program can also open the folder itself, with `braidlog.Log("data")`.
    """
