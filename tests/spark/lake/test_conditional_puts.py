"""A store that ignores `If-None-Match` is found out before a Delta table is written to it."""

import pyarrow as pa
import pytest
from tests.tables.object_store import BUCKET, object_store

from braidlog.spark.lake import conditional_puts
from braidlog.spark.lake.errors import LakeError
from braidlog.spark.lake.object_files import ObjectFiles
from braidlog.spark.lake.tables import open_table


@pytest.mark.parametrize("ignores", [False, True])
def test_a_store_is_tried_once(monkeypatch: pytest.MonkeyPatch, *, ignores: bool) -> None:
    monkeypatch.setattr(conditional_puts, "_known", {})  # servers come and go, and ports come again
    path, schema = f"s3://{BUCKET}/{ignores}/events", pa.schema([("id", pa.int64())])
    with object_store() as store:
        store.ignores_conditions = ignores
        table = open_table("delta", path, store=store.properties)
        for _ in range(2):
            if ignores:
                with pytest.raises(LakeError, match=r"ignores If-None-Match.*Use a store with conditional puts"):
                    table.prepare(schema, (), merge_schema=False)
                with pytest.raises(LakeError, match="ignores If-None-Match"):
                    table._compact(None, 1)
            else:
                table.prepare(schema, (), merge_schema=False)
        assert conditional_puts._known[BUCKET, store.url] is not ignores
        left = [path.rpartition("/")[2] for path in ObjectFiles(path, store.properties).walk()]
        assert left == ([] if ignores else ["00000000000000000000.json"]), "what was tried is removed"
