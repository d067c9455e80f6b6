"""franz-go's client of schema registries, unmodified, is understood and understands what it is told.

Its own tests are about its own stand-in and cannot be pointed elsewhere: a program asks everything that the client can
(`go/schemas`). What it is told stands here as our registry told it once: the client judges the forms, and nobody the codes.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.debian import Missing
from tests.interop.kafka.go_suites import program_of

from braidlog.testing.server import ServerProcess

SECONDS_MAX = 180
USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"string"}]}'
TWO = '{"type":"record","name":"User","fields":[{"name":"id","type":"string"},{"name":"age","type":"int","default":0}]}'
OTHER = '{"type":"record","name":"Other","fields":[{"name":"x","type":"int"}]}'
HOLDER = '{"type":"record","name":"Holder","fields":[{"name":"user","type":"User"}]}'
OBJECT = '{"type":"object","properties":{"a":{"type":"string"}}}'
PROTO = 'syntax = "proto3"; message M { string a = 1; }'

FIRST, SECOND = ["users-value", 1, 1, "AVRO", USER, 0], ["users-value", 2, 2, "AVRO", TWO, 0]
PEOPLE, HELD = ["people-value", 1, 1, "AVRO", USER, 0], ["holder-value", 1, 5, "AVRO", HOLDER, 1]
AS_JSON, AS_PROTO = ["json-value", 1, 3, "JSON", OBJECT, 0], ["proto-value", 1, 4, "PROTOBUF", PROTO, 0]
LEFT = ["holder-value", "json-value", "proto-value", "users-value"]
ALL = sorted([*LEFT, "people-value"])

TOLD: dict[str, Any] = {
    "types": ["AVRO", "PROTOBUF", "JSON"],
    "no subjects": [],
    "create first": FIRST,
    "create again": FIRST,
    "create second": SECOND,
    "create elsewhere": PEOPLE,
    "create incompatible": "refused 409 409",
    "create invalid": "refused 422 42201",
    "create json": AS_JSON,
    "create proto": AS_PROTO,
    "create with a reference": HELD,
    "create with a reference to nothing": "refused 422 42201",
    "subjects": ALL,
    "some subjects": ["users-value"],
    "by id": [USER, "AVRO"],
    "by an unknown id": "refused 404 40403",
    "text by id": USER,
    "subjects by id": ["people-value", "users-value"],
    "versions by id": [{"subject": each, "version": 1} for each in ("people-value", "users-value")],
    "version 1": FIRST,
    "version 2": SECOND,
    "version -1": SECOND,
    "version 9": "refused 404 40402",
    "text by version": TWO,
    "versions": [1, 2],
    "versions of nobody": "refused 404 40401",
    "schemas of one": [FIRST, SECOND],
    "all schemas": [HELD, AS_JSON, PEOPLE, AS_PROTO, FIRST, SECOND],
    "lookup": SECOND,
    "lookup of another": "refused 404 40403",
    "lookup at nobody": "refused 404 40401",
    "level of all": [["", "BACKWARD"]],
    "level of one without": "refused 404 40408",
    "set level of one": [["users-value", "NONE"]],
    "level of one": [["users-value", "NONE"]],
    "create whatever": ["users-value", 3, 6, "AVRO", OTHER, 0],
    "reset level": [["users-value", ""]],
    "set level of all": [["", "FULL_TRANSITIVE"]],
    "level of all then": [["", "FULL_TRANSITIVE"]],
    "fits": True,
    "does not fit": False,
    "fits no version": "refused 404 40402",
    "mode of all": [["", "READWRITE"]],
    "set mode": [["people-value", "READONLY"]],
    "mode of one": [["people-value", "READONLY"]],
    "create where it is read only": "refused 422 42205",
    "reset mode": [["people-value", "READONLY"]],
    "referenced by": [HELD],
    "delete what is referred to": "refused 422 42206",
    "delete a version": None,
    "delete it again": "refused 404 40406",
    "versions left": [1, 3],
    "versions, deleted too": [1, 2, 3],
    "delete for good": None,
    "delete for good what is there": "refused 404 40407",
    "delete a subject": [1],
    "subjects left": LEFT,
    "subjects, deleted too": ALL,
    "delete it for good": [1],
    "delete nobody": "refused 404 40401",
    "subjects, deleted too, in the end": LEFT,
}


def test_franz_gos_client(tmp_path: Path) -> None:
    try:
        command = program_of("schemas")
    except Missing as reason:
        pytest.skip(str(reason))
    with ServerProcess(tmp_path, admin=True) as node:
        asked = [*command, node.registry_url]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = dict(json.loads(line) for line in done.stdout.splitlines())
    assert {call: answer for call, answer in told.items() if answer != TOLD[call]} == {}
    assert list(told) == list(TOLD)
