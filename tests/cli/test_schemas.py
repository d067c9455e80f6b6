"""Schemas of what commands print as JSON are those of the structs they print. UPDATE_SNAPSHOTS=1 writes them anew."""

import json
import os
from inspect import cleandoc
from typing import Any

import msgspec
import pytest
from tests.cli.braid import SCHEMAS

from braidlog.cli.backup.backups import BackupRow, PruneReport
from braidlog.cli.backup.restore import RestoreReport
from braidlog.cli.cluster.doctor import Finding
from braidlog.cli.cluster.drain import DrainReport
from braidlog.cli.cluster.inspect import NodeRow, StatusReport
from braidlog.cli.cluster.placement import MovesReport
from braidlog.cli.cluster.reassignment_plan import Plan
from braidlog.cli.cluster.remove import RemovedNode
from braidlog.cli.group.change import ResetReport
from braidlog.cli.group.inspect import GroupDescription, GroupRow
from braidlog.cli.kv.names import KeyNames, KeyRows
from braidlog.cli.node.bench import Measurement
from braidlog.cli.node.describe import NodeFacts
from braidlog.cli.node.doctor import Examination
from braidlog.cli.node.health import Readiness
from braidlog.cli.schema.subjects import SchemaText, SubjectRow
from braidlog.cli.table.status import TableRow
from braidlog.cli.topic.inspect import TopicDescription, TopicRow
from braidlog.client.drivers.cluster import ClusterEvent, ClusterPartition, PartitionOutcome
from braidlog.client.drivers.contract import AccessRule
from braidlog.client.drivers.quotas import Quota
from braidlog.client.drivers.transactions import ListedTransaction, PartitionProducer, TransactionInfo
from braidlog.client.drivers.users import UserCredential
from braidlog.model.record_json import RecordInput, RecordJson
from braidlog.tools.backup.restoring import BackupReport
from braidlog.tools.clicks import Click
from braidlog.tools.keyvalue.findings import StoreReport
from braidlog.tools.keyvalue.repair import StoreRepairPlan, StoreRepairReport

GENERATED: dict[str, Any] = {
    "backup-create": BackupRow,
    "backup-list": list[BackupRow],
    "backup-prune": PruneReport,
    "backup-verify": BackupReport,
    "bench": Measurement,
    "click": Click,
    "cluster-doctor": list[Finding],
    "cluster-drain": DrainReport,
    "cluster-event": ClusterEvent,
    "cluster-nodes": list[NodeRow],
    "cluster-outcomes": list[PartitionOutcome],
    "cluster-partitions": list[ClusterPartition],
    "cluster-reassign-plan": Plan,
    "cluster-reassign-watch": MovesReport,
    "cluster-remove": RemovedNode,
    "cluster-status": StatusReport,
    "doctor": Examination,
    "group-describe": GroupDescription,
    "group-list": list[GroupRow],
    "group-reset": ResetReport,
    "health": Readiness,
    "node": list[NodeFacts],
    "kv-keys": KeyNames,
    "kv-scan": KeyRows,
    "kv-repair": StoreRepairReport,
    "kv-repair-plan": StoreRepairPlan,
    "kv-verify": StoreReport,
    "quota-list": list[Quota],
    "record": RecordJson,
    "record-input": RecordInput,
    "restore": RestoreReport,
    "rule-list": list[AccessRule],
    "schema-get": SchemaText,
    "schema-list": list[SubjectRow],
    "table-status": list[TableRow],
    "topic-describe": list[TopicDescription],
    "topic-list": list[TopicRow],
    "txn-describe": TransactionInfo,
    "txn-list": list[ListedTransaction],
    "txn-producers": list[PartitionProducer],
    "user-list": list[UserCredential],
}


def schema_text(name: str) -> str:
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(GENERATED[name])}
    for each in made.get("$defs", {}).values():
        if "description" in each:
            each["description"] = cleandoc(each["description"])  # 3.13 keeps docstrings without their indentation
    return json.dumps(made, indent=2) + "\n"


@pytest.mark.parametrize("name", GENERATED)
def test_schemas_are_those_of_the_structs(name: str) -> None:
    kept = SCHEMAS / f"{name}.json"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        kept.write_text(schema_text(name), encoding="utf-8")
    assert kept.read_text(encoding="utf-8") == schema_text(name)
