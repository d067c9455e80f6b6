"""The client's promise: one program, whatever the wire. The same ten lines write and read through each dialect of one node.

python examples/one_client_many_wires.py                                      starts a node of its own
python examples/one_client_many_wires.py rustlog://127.0.0.1:9096 mlog://127.0.0.1:9094     talks to yours
"""

import sys
import tempfile

import braidlog
from braidlog.testing.server import ServerProcess


def write_and_read(url: str, topic: str) -> None:
    with braidlog.connect(url) as client:
        client.admin.ensure_topic(topic)
        placed = client.producer().send_and_wait(topic, f"written through {client.dialect}".encode())
        consumer = client.consumer()
        consumer.assign(topic, start="earliest")
        seen = 0
        while seen <= placed.offset:
            for record in consumer.poll(timeout=5):
                seen += 1
                print(f"{client.dialect:8} sees {record.offset}: {(record.value or b'').decode()}")


def main(urls: list[str]) -> None:
    for url in urls:
        write_and_read(url, "shared")  # one topic, all doors


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as folder, ServerProcess(folder + "/data") as node:
            main([f"{dialect}://127.0.0.1:{node.ports[dialect]}" for dialect in ("mlog", "flux", "cursus", "rustlog")])
