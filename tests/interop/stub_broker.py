# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""As little of a Kafka broker as a stock client needs to produce to one partition, and to read it.

Speaks ApiVersions 0, Metadata 4, Produce 7, ListOffsets 2, Fetch 10 and FindCoordinator 0, nothing flexible.
It keeps the batches of Produce as they came, and answers Fetch with those it was made with, as they are.
"""

import socketserver
import struct
import threading

TOPIC = "interop"

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, API_VERSIONS = 0, 1, 2, 3, 10, 18

# Old clients look for single versions in ranges, so the ranges are wide; clients take the highest.
VERSIONS = {
    PRODUCE: (0, 7),
    FETCH: (0, 10),
    LIST_OFFSETS: (0, 2),
    METADATA: (0, 4),
    8: (0, 2),
    9: (0, 1),
    FIND_COORDINATOR: (0, 0),
    11: (0, 0),
    12: (0, 0),
    13: (0, 0),
    14: (0, 0),
    API_VERSIONS: (0, 0),
}


def text(value):
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Reader:
    def __init__(self, data):
        self.data = data
        self.position = 0

    def take(self, layout):
        values = struct.unpack_from(">" + layout, self.data, self.position)
        self.position += struct.calcsize(">" + layout)
        return values[0] if len(values) == 1 else values

    def blob(self, layout):
        length = self.take(layout)
        if length < 0:
            return None
        self.position += length
        return self.data[self.position - length : self.position]


class StubBroker(socketserver.ThreadingTCPServer):
    """`with StubBroker(batches) as broker`: listens at `broker.address`; `produced` has what came."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, batches=b"", next_offset=0):
        super().__init__(("127.0.0.1", 0), Connection)
        self.batches = batches
        self.next_offset = next_offset
        self.produced = []
        self.closing = threading.Event()
        self.address = f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.shutdown()
        self.server_close()

    def answer(self, api, version, request):
        if api == API_VERSIONS:
            # An unknown version is answered in version 0 with error 35: the client then asks again in 0.
            error = 35 if version else 0
            rows = b"".join(struct.pack(">hhh", key, *span) for key, span in VERSIONS.items())
            return struct.pack(">hi", error, len(VERSIONS)) + rows
        assert VERSIONS[api][1] == version, f"api {api} in version {version}"
        return ANSWERS[api](self, request)

    def metadata(self, _request):
        host, port = self.address.split(":")
        broker = struct.pack(">ii", 1, 1) + text(host) + struct.pack(">ih", int(port), -1)
        partition = struct.pack(">hiiiiii", 0, 0, 1, 1, 1, 1, 1)
        topic = struct.pack(">h", 0) + text(TOPIC) + struct.pack(">bi", 0, 1) + partition
        return struct.pack(">i", 0) + broker + text("stub") + struct.pack(">ii", 1, 1) + topic

    def produce(self, request):
        request.blob("h")
        request.take("hi")
        assert request.take("i") == 1
        assert request.blob("h") == TOPIC.encode()
        assert request.take("ii") == (1, 0)
        self.produced.append(bytes(request.blob("i")))
        answer = struct.pack(">iihqqq", 1, 0, 0, len(self.produced) * 1000, -1, 0)
        return struct.pack(">i", 1) + text(TOPIC) + answer + struct.pack(">i", 0)

    def list_offsets(self, request):
        request.take("ibi")
        request.blob("h")
        _count, _partition, timestamp = request.take("iiq")
        offset = self.next_offset if timestamp == -1 else 0
        return struct.pack(">ii", 0, 1) + text(TOPIC) + struct.pack(">iihqq", 1, 0, 0, -1, offset)

    def fetch(self, request):
        request.take("iiiibii")
        records = b""
        if request.take("i"):
            request.blob("h")
            _count, _partition, _epoch, offset, _start, _bytes_max = request.take("iiiqqi")
            records = self.batches if offset < self.next_offset else b""
        if not records:
            self.closing.wait(0.05)
        head = struct.pack(">ihii", 0, 0, 0, 1) + text(TOPIC)
        end = self.next_offset
        return head + struct.pack(">iihqqqii", 1, 0, 0, end, end, 0, -1, len(records)) + records

    def find_coordinator(self, _request):
        return struct.pack(">hi", 15, -1) + text("") + struct.pack(">i", -1)


ANSWERS = {
    PRODUCE: StubBroker.produce,
    FETCH: StubBroker.fetch,
    LIST_OFFSETS: StubBroker.list_offsets,
    METADATA: StubBroker.metadata,
    FIND_COORDINATOR: StubBroker.find_coordinator,
}


class Connection(socketserver.StreamRequestHandler):
    server: StubBroker

    def handle(self):
        try:
            while size := self.rfile.read(4):
                request = Reader(self.rfile.read(int.from_bytes(size, "big")))
                api, version, correlation = request.take("hhi")
                request.blob("h")
                answer = self.server.answer(api, version, request)
                self.wfile.write(struct.pack(">ii", len(answer) + 4, correlation) + answer)
        except ConnectionError:
            return
