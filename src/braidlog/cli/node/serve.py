"""`braid serve`, `braid dev`, `braid config`: run a node, and show its settings."""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click

from braidlog.cli import LazyGroup
from braidlog.cli.terminal.arguments import pairs, together
from braidlog.cli.terminal.output import OUTPUT, plural, print_json
from braidlog.cli.terminal.secrets import refuse_typed_settings
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.reporting.json_log_line import TEXT, formatter
from braidlog.server.config import ListenersConfig, LoadedConfig, load_config
from braidlog.server.node import Server
from braidlog.server.process.log_rate_limit import RateLimitedLog
from braidlog.server.process.process_memory import keep_freed_memory
from braidlog.server.process.service_manager import ServiceManager
from braidlog.tasks import Tasks

NODES_MAX = 9
"""Limits of a cluster on one machine."""


def load_settings(
    config: str | None, data_dir: str | None, changes: tuple[str, ...], more: dict[str, Any]
) -> LoadedConfig:
    flags: dict[str, Any] = dict(more)
    if data_dir is not None:
        flags["data_dir"] = data_dir
    typed = pairs(changes, "--set")
    refuse_typed_settings(list(typed))
    return load_config(_read(config), os.environ, flags | typed)


def _read(config: str | None) -> tuple[str, str] | None:
    if config is None:
        return None
    try:
        return config, Path(config).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        words = f"file not found: {config}; create it with `braid config init {config}`"
        raise BrokerError(Reason.INVALID_SETTING, words) from error
    except OSError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"{config}: {error.strerror}") from error


settings_options = together(
    click.option(
        "--set",
        "changes",
        metavar="NAME=VALUE",
        multiple=True,
        help="Any setting, e.g. listeners.flux.port=0; may be repeated. `braid config show` lists them.",
    ),
    click.option("--data-dir", metavar="FOLDER", help="Where the log lives."),
    click.option("--config", "-c", metavar="FILE", help="Settings in TOML."),
)


@click.command(epilog="Example: braid serve --data-dir /var/lib/braidlog --set listeners.cursus.port=10000")
@settings_options
@click.option("--free-ports", is_flag=True, help="Listen on free ports, and print them as JSON.")
@click.option("--allow-open", is_flag=True, help="Allow listening beyond loopback without authentication.")
@click.option("--wire-log", metavar="FILE", help="Decode and log every message, without secrets; `-` is stdout.")
@click.option("--wire-format", type=click.Choice(["text", "json"]), help="Format of the wire log.  [default: text]")
@click.option("--wire-hex", is_flag=True, help="Include the bytes of each message, as `braid wire send` needs them.")
@click.option("--wire-pcapng", metavar="FILE", help="Also write a capture for Wireshark (see `braid wire dissector`).")
def serve(  # noqa: PLR0913 - one parameter an option
    config: str | None,
    data_dir: str | None,
    changes: tuple[str, ...],
    *,
    free_ports: bool,
    allow_open: bool,
    wire_log: str | None,
    wire_format: str | None,
    wire_hex: bool,
    wire_pcapng: str | None,
) -> None:
    """Run a node with one port per protocol, until SIGTERM or SIGINT; SIGHUP reloads its certificates.

    Prints one line of JSON with its ports when it is ready. Shutdown is graceful: the node drains requests, syncs, and
    records the clean stop. Flags override the environment (BRAID_DATA_DIR, BRAID_LISTENERS__CURSUS__PORT=…), which
    overrides the file.
    """
    more: dict[str, Any] = {"auth.allow_open": True} if allow_open else {}
    wire = {"path": wire_log, "format": wire_format, "hex": wire_hex or None, "pcapng": wire_pcapng}
    more |= {f"wire_log.{name}": value for name, value in wire.items() if value is not None}
    if free_ports:
        more |= {f"listeners.{name}.port": 0 for name in ListenersConfig.__struct_fields__} | {
            "admin.port": 0,
            "registry.port": 0,
        }
    loaded = load_settings(config, data_dir, changes, more)
    _log(loaded, TEXT)
    _run(_serve(loaded))


@click.command(epilog="Example: braid dev --data-dir ./data --nodes 3")
@settings_options
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    default=1,
    show_default=True,
    help="Number of nodes of a cluster, on ports 100 apart; more than one needs etcd.",
)
def dev(config: str | None, data_dir: str | None, changes: tuple[str, ...], nodes: int) -> None:
    """Run a local node for development, and print its addresses.

    --nodes 3 runs three processes, each with its own folder and etcd member. Kill one of them and watch its partitions
    move: `braid cluster status`.
    """
    loaded = load_settings(config, data_dir, changes, {})
    if nodes > 1:
        from braidlog.cli.node.local_cluster import dev_cluster  # noqa: PLC0415 - only for several nodes

        dev_cluster(loaded, nodes)
        return
    _log(loaded, "%(levelname)s %(name)s: %(message)s", quiet=True)
    _run(_serve(loaded, friendly=True))


def _log(loaded: LoadedConfig, text: str, *, quiet: bool = False) -> None:
    """Configure logging by the settings; `quiet` logs only warnings unless the settings name a level."""
    settings = loaded.config.log
    is_default = loaded.origins.get("log.level", "default") == "default"
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RateLimitedLog())
    handler.setFormatter(formatter(settings.format, text))
    logging.basicConfig(level="WARNING" if quiet and is_default else settings.level.upper(), handlers=[handler])


def _run(main: Coroutine[Any, Any, None]) -> None:
    # Loaded modules stay, and a request allocates dozens of objects without cycles: collecting after every 700 objects
    # would be wasted work.
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    keep_freed_memory()
    try:
        import uvloop  # noqa: PLC0415 - optional: faster where it is installed
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _serve(loaded: LoadedConfig, *, friendly: bool = False) -> None:
    manager, tasks = ServiceManager.of_this_process(os.environ), Tasks()
    server = Server(loaded.config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.request_stop)
    loop.add_signal_handler(signal.SIGHUP, server.reload_certificates)
    try:
        await server.start()
        await server.start_console(loaded)
        _announce(server, friendly=friendly)
        manager.notify("READY=1", f"MAINPID={os.getpid()}", f"STATUS=serves {server.config.data_dir}")
        if manager.beat_seconds is not None:
            tasks.every(manager.beat_seconds, manager.beat, "service manager")
        await server.run()
    finally:
        manager.notify("STOPPING=1")
        await server.stop()
        await tasks.stop()


def _announce(server: Server, *, friendly: bool) -> None:
    if not friendly:
        line = {"ready": True, "pid": os.getpid(), "ports": server.ports, "admin": server.admin_port}
        click.echo(json.dumps({**line, "registry": server.registry_port}))
        sys.stdout.flush()
        return
    click.echo(f"braidlog is ready, data in {server.config.data_dir}")
    for dialect, port in sorted(server.ports.items()):
        click.echo(f"  {dialect + '://':12}127.0.0.1:{port}")
    scheme = "https" if server.config.admin.tls.cert else "http"
    if server.admin_port is not None:
        click.echo(f"  {'console':12}{scheme}://{_place(server.config.admin.host, server.admin_port)}/")
    if server.registry_port is not None:
        click.echo(f"  {'schemas':12}{scheme}://{_place(server.config.registry.host, server.registry_port)}/")
    click.echo("Stop with Ctrl-C.")


def _place(host: str, port: int) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port}"


@click.group(
    cls=LazyGroup,
    lazy={
        "show": ("braidlog.cli.node.serve:show", "List settings and values."),
        "check": ("braidlog.cli.node.serve:check", "Validate settings."),
        "init": ("braidlog.cli.node.config_init:init", "Write a settings file."),
    },
)
def config() -> None:
    """Show, check and create settings of a node.

    Authentication: [auth.tokens] holds a line NAME = "SHA-256 of the token, in hex" for each client
    (printf %s TOKEN | sha256sum), and [[auth.rules]] what each client may do. A client sends the line

        AUTH NAME TOKEN

    before its first frame, on any listener; the node does not answer a valid line. Cursus clients may use Cursus' own
    AUTH. Settings auth.unauthenticated.* limit unauthenticated clients; auth.failure_delay_seconds and
    auth.failure_delay_seconds_max delay the answer to a wrong token. Use TLS (listeners.NAME.tls.cert) on untrusted networks.
    """


@click.command(epilog="Example: BRAID_LISTENERS__FLUX__PORT=7000 braid config show --origin")
@settings_options
@click.option("--origin", is_flag=True, help="Show the origin of each value.")
@OUTPUT
def show(config: str | None, data_dir: str | None, changes: tuple[str, ...], *, origin: bool, output: str) -> None:
    """List all settings with their values."""
    loaded = load_settings(config, data_dir, changes, {})
    rows = {name: (value, loaded.origins.get(name, "default")) for name, value in loaded.flat().items()}
    if output == "json":
        print_json({n: {"value": v, "origin": o} if origin else v for n, (v, o) in rows.items()})
        return
    width = max(map(len, rows))
    for name, (value, where) in rows.items():
        click.echo(f"{name:{width}}  {json.dumps(value)}" + (f"  ({where})" if origin else ""))


@click.command(epilog="Example: braid config check -c braidlog.toml && systemctl reload braidlog")
@settings_options
def check(config: str | None, data_dir: str | None, changes: tuple[str, ...]) -> None:
    """Validate names and values of the settings in the file, the environment and the flags.

    Referenced files, ports and the data folder are checked when the node starts.
    """
    loaded = load_settings(config, data_dir, changes, {})
    given = [origin for origin in loaded.origins.values() if origin != "default"]
    click.echo(f"valid; {plural(len(given), 'setting')} given, all others have their defaults")
