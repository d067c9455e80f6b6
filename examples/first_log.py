"""The first promise: a log is a folder. Open it, append, read back; no server, no socket, nothing to configure.

python examples/first_log.py            in a temporary folder
python examples/first_log.py ./data     in a folder of yours: run it twice, and the first records are still there
"""

import sys
import tempfile

from braidlog import Log


def main(folder: str) -> None:
    with Log(folder) as log:
        topic = log.ensure_topic("greetings")
        for word in (b"hello", b"log"):
            offset = topic.append(word)  # returns when the record is on the disk
            print(f"appended {word!r} at offset {offset}")

    with Log(folder) as log:  # as another process would, tomorrow
        for record in log.topic("greetings"):
            print(f"{record.offset}: {record.value!r}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary + "/data")
