"""`braid spark shell`: starts a PySpark shell."""

import code

import click

from braidlog.cli.pipeline.options import CONF
from braidlog.wire.kafka import DIALECT

BANNER = f"""\
spark.read.format("braidlog").option("servers", "127.0.0.1:{DIALECT.port}").option("subscribe", "TOPIC").load().show()
"""


@click.command("shell")
@click.option("--master", default="local[*]", show_default=True, metavar="URL", help="Spark master.")
@CONF
def shell(master: str, conf: tuple[str, ...]) -> None:
    """Start a Python shell with `spark`, a session with braidlog's formats, and `f`, pyspark.sql.functions."""
    from braidlog.cli.pipeline.options import wishes  # noqa: PLC0415 - not for --help
    from braidlog.spark import session  # noqa: PLC0415
    from braidlog.spark.sessions import JavaMissingError  # noqa: PLC0415

    try:
        spark = session("braid spark shell", master, log_level="ERROR", **wishes(master, conf).conf)
    except JavaMissingError as error:
        raise click.ClickException(str(error)) from error
    from pyspark.sql import functions  # noqa: PLC0415

    try:
        code.interact(BANNER, local={"spark": spark, "f": functions}, exitmsg="")
    finally:
        spark.stop()
