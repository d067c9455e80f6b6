"""The broker that is judged, once for every client and worker, and the clients' processes."""

from collections.abc import Callable, Iterator

import pytest
from tests.debian import Missing
from tests.interop.kafka.clients import CLIENTS
from tests.interop.kafka.judging import Judge
from tests.interop.kafka.servers import Servers, judged


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with judged(tmp_path_factory.mktemp("judged")) as found:
        yield found


@pytest.fixture(scope="session")
def judge_of(servers: Servers) -> Iterator[Callable[[str], Judge]]:
    judges: dict[str, Judge] = {}

    def judge(client: str) -> Judge:
        if client not in judges:
            try:
                command = CLIENTS[client].command()
            except Missing as reason:
                print(reason)
                pytest.skip(str(reason))
            judges[client] = Judge([*command, *servers.words(), "-"])
        return judges[client]

    yield judge
    for each in judges.values():
        each.close()
