"""Pictures of the console for the docs: `make pictures` (or `python -m tests.console.pictures`).

A node with something going on, a browser, one PNG for each row of `PICTURES`.
"""

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from playwright.sync_api import expect
from tests.console.browsing import chromium, opened
from tests.server.etcd.members import members

import braidlog
from braidlog.testing.cluster_process import ClusterProcess
from braidlog.testing.server import ServerProcess

FOLDER = Path(__file__).parents[2] / "docs/pictures"
SECONDS_OF_PLOT = 40
ORDERS = (
    {"type": "record", "name": "Order", "fields": [{"name": "order", "type": "long"}]},
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "order", "type": "long"}, {"name": "customer", "type": "string", "default": ""}],
    },
)
"""Two versions of a schema."""


class Picture(NamedTuple):
    name: str
    path: str
    ready: str
    dark: bool = False
    width: int = 1180
    height: int = 800


PICTURES = (
    Picture("console-overview-light", "/", f"[data-plot=rates][data-points='{SECONDS_OF_PLOT}']"),
    Picture("console-topic-dark", "/topics/orders", "#records > li:nth-child(30)", dark=True),
    Picture(
        "console-group-dark",
        "/groups/billing",
        f"[data-plot=lag][data-points='{SECONDS_OF_PLOT}']",
        dark=True,
        height=640,
    ),
    Picture("console-schema-light", "/schemas/orders-value", "text=customer", height=520),
    Picture("console-table-light", "/topics/shipments", "#table:text-matches('[1-9][0-9]* rows')", height=640),
    Picture("console-phone-light", "/topics", "#live table", width=380, height=640),
)


@contextmanager
def going_on(node: ServerProcess) -> Iterator[None]:
    """Producers at a changing pace, a group that falls behind and catches up, another that keeps up."""
    done = threading.Event()
    url = f"kafka://127.0.0.1:{node.ports['kafka']}"

    def produce(topic: str, many: int) -> None:
        number = 0
        with braidlog.connect(url) as client:
            producer = client.producer()
            while not done.wait(0.1):
                for _ in range(many + number // 40 % 3 * many):
                    number += 1
                    order = {"order": 10_000 + number, "customer": f"c-{number % 97}", "total": number % 90 + 0.99}
                    producer.send(topic, json.dumps(order).encode(), key=f"c-{number % 97}".encode())
                producer.flush()

    def consume(topic: str, group: str, many: int) -> None:
        with braidlog.connect(url) as client:
            consumer = client.consumer()
            consumer.subscribe(topic, group=group)
            rounds = 0
            while not done.wait(0.5):
                rounds += 1
                hurry = 12 if rounds % 30 > 22 else 1
                for _ in range(hurry):
                    consumer.poll(max_records=many, timeout=0.2)
                consumer.commit()

    with braidlog.connect(url) as client:
        for topic, partitions in (("orders", 3), ("payments", 2), ("clicks", 6)):
            client.admin.create_topic(topic, partitions)
    jobs = [
        threading.Thread(target=produce, args=("orders", 12)),
        threading.Thread(target=produce, args=("payments", 4)),
        threading.Thread(target=produce, args=("clicks", 30)),
        threading.Thread(target=consume, args=("orders", "billing", 40)),
        threading.Thread(target=consume, args=("clicks", "analytics", 2_000)),
    ]
    for job in jobs:
        job.start()
    try:
        yield
    finally:
        done.set()
        for job in jobs:
            job.join()


def take_cluster() -> None:
    """Three nodes, one of which has just been killed."""
    with (
        TemporaryDirectory() as folder,
        members(Path(folder), 1) as (etcd,),
        ClusterProcess(Path(folder) / "nodes", etcd.url, admin=True) as nodes,
        chromium() as browser,
    ):
        with braidlog.connect(nodes.url("kafka")) as client:
            client.admin.create_topic("orders", 3)
            client.admin.create_topic("payments", 3)
        with opened(browser, f"{nodes[1].admin_url}/cluster", width=1180, height=800, dark=True) as page:
            expect(page.locator("#nodes .pill.good")).to_have_count(3)
            nodes[3].kill()
            expect(page.locator("#nodes .pill.bad")).to_have_count(1)
            expect(page.locator("#weak tbody tr")).to_have_count(6)
            page.screenshot(path=FOLDER / "console-cluster-dark.png")


def register_schemas(node: ServerProcess) -> None:
    for schema in ORDERS:
        request = urllib.request.Request(
            f"{node.registry_url}/subjects/orders-value/versions",
            json.dumps({"schema": json.dumps(schema)}).encode(),
            {"content-type": "application/vnd.schemaregistry.v1+json"},
        )
        urllib.request.urlopen(request).close()


def make_table(node: ServerProcess) -> None:
    """A topic whose segments are closed, and rows, after a second."""
    with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
        settings = {"braidlog.table": "json", "braidlog.table.lag.ms": "1000"}
        client.admin.create_topic("shipments", settings=settings)
        producer = client.producer()
        for number in range(500):
            producer.send("shipments", json.dumps({"order": number, "to": f"c-{number % 97}"}).encode())
        producer.flush()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    take_cluster()
    with (
        TemporaryDirectory() as folder,
        ServerProcess(Path(folder) / "data", admin=True) as node,
        going_on(node),
        chromium() as browser,
    ):
        urllib.request.urlopen(f"{node.admin_url}/healthz").close()
        register_schemas(node)
        make_table(node)
        for picture in PICTURES:
            url = f"{node.admin_url}{picture.path}"
            with opened(browser, url, width=picture.width, height=picture.height, dark=picture.dark) as page:
                expect(page.locator(picture.ready).first).to_be_attached(timeout=600_000)
                if picture.name == "console-table-light":
                    page.locator("#table").scroll_into_view_if_needed()
                if picture.path == "/topics/orders":
                    page.locator("#tail-pause").click()  # else what is opened moves on
                    page.locator("#records > li .line").nth(2).click()
                page.screenshot(path=FOLDER / f"{picture.name}.png")


if __name__ == "__main__":
    main()
