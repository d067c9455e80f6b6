"""Back-ups in an object store: whole or none, whatever the store does, whoever is killed, and whoever comes at the same time."""

import datetime as dt
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import FakeKey, s3_backends
from tests.cli.braid import Braid
from tests.tables.object_store import BUCKET, SILENT, ObjectStore, object_store

import braidlog
from braidlog.model.errors import BrokerError, Reason
from braidlog.tools.backup.object_place import HELD_SECONDS, RENEWED_SECONDS, ObjectPlace
from braidlog.tools.backup.store import BackupStore

REFUSED = 3
VALUES = [bytes([number]) * 3000 for number in range(4)]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


class Kept:
    """A folder of data, a place for its back-ups in the store, and the command that knows both."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self.uri = f"s3://{BUCKET}/{folder.name}/node-1"
        self.data = str(folder / "data")
        self.properties = {**store.properties, "s3.request-timeout": "5"}
        told = folder / "store.toml"
        told.write_text("".join(f'"{name}" = "{value}"\n' for name, value in self.properties.items()))
        self.braid = Braid()
        self.braid.environment["BRAID_STORE_FILE"] = str(told)
        with braidlog.Log(self.data) as log:
            topic = log.create_topic("a", segment_bytes=4096)
            for value in VALUES:
                topic.append(value)

    def create(self, *options: str) -> dict[str, object]:
        made = self.braid.json("backup", "create", self.uri, "--data", self.data, *options, schema="backup-create")
        assert isinstance(made, dict)
        return made

    def append(self, value: bytes) -> None:
        with braidlog.Log(self.data) as log:
            log.topic("a").append(value)

    def place(self, **options: object) -> ObjectPlace:
        return ObjectPlace(self.uri, self.properties, **options)  # type: ignore[arg-type]

    def objects(self, folder: str = "") -> dict[str, FakeKey]:
        """As moto has them."""
        prefix = f"{self.uri.removeprefix(f's3://{BUCKET}/')}/"
        found = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[BUCKET].keys.items()
        below = {name.removeprefix(prefix): key for name, key in found if name.startswith(prefix + folder)}
        return {name: key for name, key in below.items() if not name.endswith("/")}

    def check_all_sound(self) -> None:
        for backup in BackupStore(self.place()).finished():
            self.braid.ok("backup", "verify", self.uri, backup)


@pytest.fixture
def kept(store: ObjectStore, tmp_path: Path) -> Kept:
    return Kept(store, tmp_path)


def test_from_the_first_to_a_restored_one(kept: Kept, tmp_path: Path) -> None:
    first, again = kept.create(), kept.create()
    assert isinstance(first["added"], int)
    assert (first["added"] > sum(map(len, VALUES)), again["added"]) == (True, 0)
    kept.append(b"one more")
    third = kept.create()
    rows = kept.braid.json("backup", "list", kept.uri, schema="backup-list")
    assert [row["backup"] for row in rows] == [first["backup"], again["backup"], third["backup"]]

    there = kept.objects()
    assert {name.partition("/")[0] for name in there} == {"backups", "pieces"}
    gone = json.loads(kept.braid.ok("backup", "prune", kept.uri, "--keep", "1", "--yes", "-o", "json"))
    assert gone["removed"] == [first["backup"], again["backup"]]
    left = kept.objects()
    assert gone["freed"] == sum(
        key.size for name, key in there.items() if name not in left and name.startswith("pieces")
    )

    kept.braid.ok("restore", kept.uri, str(tmp_path / "restored"))
    with braidlog.Log(str(tmp_path / "restored")) as log:
        assert [record.value for record in log.topic("a").iterate(0)] == [*VALUES, b"one more"]

    for name, key in left.items():  # copied object by object it is a folder of back-ups
        (path := tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key.value)
        assert name.startswith("backups/") or hashlib.sha256(key.value).hexdigest() == path.name
    assert "is intact" in kept.braid.ok("backup", "verify", f"file://{tmp_path / 'folder'}")


@pytest.mark.parametrize(("how", "step"), [("throttled", 31), ("half", 13)])
def test_a_store_that_fails_at_whatever_request(kept: Kept, store: ObjectStore, how: str, step: int) -> None:
    """At the first, some later, and so on, until a back-up needs fewer: there is no back-up, or it is whole."""
    at = failures = 0
    while True:
        kept.append(bytes([at]) * 2000)
        before = kept.objects("backups")
        store.fail_from(at, how)
        result = kept.braid("backup", "create", kept.uri, "--data", kept.data)
        has_failed = bool(store.failed)
        store.mend()
        if result.exit_code:
            assert (result.exit_code, f"{kept.uri} cannot be" in result.stderr) == (REFUSED, True), result.output
            assert set(kept.objects("backups")) == set(before)
            failures += 1
        old(kept)
        if not has_failed:
            break
        at += step
    assert failures > 1
    kept.create()
    kept.check_all_sound()
    kept.braid.ok("backup", "prune", kept.uri, "--keep", "1", "--yes")
    kept.check_all_sound()
    (manifest,) = (key.value.decode() for key in kept.objects("backups").values())
    assert all(name.rpartition("/")[2] in manifest for name in kept.objects("pieces"))


def old(kept: Kept) -> None:
    """What says that somebody writes was written too long ago."""
    for key in kept.objects("writing").values():
        key.last_modified -= dt.timedelta(seconds=HELD_SECONDS + 2)


def test_one_at_a_time_writes(kept: Kept) -> None:
    kept.create()
    with kept.place().writing():
        assert "is in use" in kept.braid.fails(REFUSED, "backup", "prune", kept.uri, "--keep", "1", "--yes")
        assert "is in use" in kept.braid.fails(REFUSED, "backup", "create", kept.uri, "--data", kept.data)
        assert len(kept.objects("writing")) == 1
        kept.check_all_sound()  # to read is free
        old(kept)
        kept.create()
    assert not kept.objects("writing")


def test_who_is_held_up_stops_by_itself(kept: Kept) -> None:
    now = 1000.0
    place = kept.place(seconds=lambda: now)
    with place.writing():
        (begun,) = [key.last_modified for key in kept.objects("writing").values()]
        old(kept)
        place.write("pieces/aa/first", b"1")
        assert [key.last_modified < begun for key in kept.objects("writing").values()] == [True]
        now += RENEWED_SECONDS + 1
        place.write("pieces/aa/second", b"2")
        assert [key.last_modified >= begun for key in kept.objects("writing").values()] == [True], "renewed"
        now += HELD_SECONDS / 2 + 1
        with pytest.raises(BrokerError, match="not renewed for 901 s") as caught:
            place.write("backups/never.json", b"3")
        with pytest.raises(BrokerError, match="lock expired"):
            place.remove("pieces/aa/first")
    assert caught.value.reason is Reason.TIMED_OUT
    assert set(kept.objects()) == {"pieces/aa/first", "pieces/aa/second"}


def test_damage_is_found_and_mended(kept: Kept) -> None:
    kept.create()
    half, other = sorted(kept.objects("pieces").values(), key=lambda key: -key.size)[:2]
    half.value = half.value[: half.size // 2]  # type: ignore[misc] # shorter than it is named: no piece
    other.value = bytes(other.size)  # type: ignore[misc]
    assert len(faults_of(kept)) == 2
    kept.create()
    assert len(faults_of(kept)) == 1, "what is too short is uploaded again"
    kept.create("--full")
    assert "is intact" in kept.braid.ok("backup", "verify", kept.uri)


def faults_of(kept: Kept) -> list[str]:
    found = kept.braid("backup", "verify", kept.uri, "-o", "json")
    assert found.exit_code == 1
    return [each["why"] for each in json.loads(found.stdout)["faults"] if "SHA-256" in each["why"]]


def test_what_is_refused_says_why(kept: Kept, store: ObjectStore) -> None:
    braid = kept.braid
    for command in (["create", "--data", kept.data], ["list"], ["prune", "--keep", "1", "--yes"]):
        assert "bucket 'nowhere' does not exist" in braid.fails(
            REFUSED, "backup", command[0], "s3://nowhere/x", *command[1:]
        )
    assert "holds no backups" in braid.fails(REFUSED, "backup", "list", f"s3://{BUCKET}/nothing-yet")
    assert "or s3://, gs://, abfss://" in braid.fails(REFUSED, "backup", "list", "ftp://a/b")
    store.fail_from(0, "refused")
    said = braid.fails(REFUSED, "backup", "create", kept.uri, "--data", kept.data)
    assert ("not you" in said, "credentials in --store-file" in said) == (True, True)
    store.mend()
    Path(braid.environment["BRAID_STORE_FILE"]).write_text("[s3\n")
    assert "store.toml" in braid.fails(2, "backup", "list", kept.uri)


def test_a_store_that_never_answers(kept: Kept, store: ObjectStore) -> None:
    kept.properties |= {"s3.request-timeout": "1"}
    store.fail_from(0, SILENT)
    with pytest.raises(BrokerError, match=r"cannot be listed: .*imeout") as caught:
        BackupStore(kept.place()).finished()
    store.mend()
    assert caught.value.reason is Reason.UNAVAILABLE
