"""The model of etcd against a script whose answers real members give as well (tests/server/etcd)."""

from pathlib import Path

from tests.cluster.etcd.script import Script
from tests.model.manual_world import ManualRuntime
from tests.simulation.etcd import ModelClient, ModelEtcd

from braidlog.testing.clock import ManualClock

ANSWERS = Path(__file__).parent / "answers.txt"


def test_the_model_answers_as_etcd_did() -> None:
    """answers.txt was written by etcd 3.4.23."""
    runtime = ManualRuntime(ManualClock())
    job = runtime.spawn(Script(ModelClient(ModelEtcd(runtime))).play())
    runtime.advance(1_000)
    assert [repr(given) for given in job.result()] == ANSWERS.read_text().splitlines()
