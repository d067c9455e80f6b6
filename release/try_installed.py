"""Whether what was installed works: compiled kernels, a log in a folder, and a node that a client talks to.

    python try_installed.py [PREFIX …]

PREFIX: words before the command of the node, where another program runs this Python.
Run by the Python it was installed for, without a checkout, a compiler or anything that tests need. With BRAIDLOG_PURE=1 it may be
pure Python, as what setup.py makes then.
"""

import os
import sys
import tempfile
from importlib import import_module, resources

import braidlog
from braidlog import Log
from braidlog.testing.server import ServerProcess

COMPILED = (
    "codec.batch.kernel",
    "codec.batch.record_slice",
    "codec.batch.rows",
    "codec.batch.schema_ids",
    "codec.columns.arrow_to_records",
    "codec.columns.column_blocks",
    "codec.columns.json_to_arrow",
    "codec.columns.records_to_arrow",
    "kv.feed.feed_rows",
    "kv.replicated.log_kernel",
    "wire.mayfly.bursts",
)


def main() -> None:
    for name in () if os.environ.get("BRAIDLOG_PURE") == "1" else COMPILED:
        found = str(import_module(f"braidlog.{name}").__file__)
        assert found.endswith(".so"), f"{name} is not compiled: {found}"
    assert (resources.files("braidlog") / "console" / "static" / "htmx.min.js").is_file(), "the console's pages"
    with tempfile.TemporaryDirectory() as folder:
        with Log(f"{folder}/log") as log:
            pages = log.ensure_topic("pages")
            pages.append(b"hello", key=b"ada")
            assert [(record.key, record.value) for record in pages] == [(b"ada", b"hello")]
        with (
            ServerProcess(f"{folder}/node", prefix=sys.argv[1:]) as node,
            braidlog.connect(f"kafka://{node.bootstrap()}") as client,
            client.producer() as producer,
            client.consumer() as consumer,
        ):
            client.admin.ensure_topic("orders")
            producer.send_and_wait("orders", b"one book")
            consumer.subscribe("orders", group="shipping")
            assert [each.value for each in consumer.poll(max_records=1, timeout=60)] == [b"one book"]
    sys.stdout.write(f"braidlog {braidlog.__version__} works on Python {sys.version.split()[0]}\n")


if __name__ == "__main__":
    main()
