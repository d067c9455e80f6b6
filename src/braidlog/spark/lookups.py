"""`lookup(df, on="origin", prefix="airport:", schema=…)`: joins keys of the store as an always current dimension.

Does not handle: Mayfly's encoding, streams. Every row is returned once, in order, with nulls if its key has no value.
A value is at most `cache_seconds` older than its row's processing time. A batch requests each key once, many keys in
one piece.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from braidlog.client.errors import ClientError
from braidlog.client.kv import commands as c
from braidlog.client.kv.blocking import connect
from braidlog.model.clock import Clock, SystemClock
from braidlog.spark.options import OptionError
from braidlog.wire.mayfly import DIALECT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

CACHED_KEYS_MAX = 100_000
WINDOW = 1000
"""Commands in one piece; the answers of a piece arrive before the next one is sent."""


def lookup(
    df: "DataFrame",
    *,
    on: str,
    schema: str,
    prefix: str = "",
    servers: str = DIALECT.local_url,
    cache_seconds: float = 1.0,
) -> "DataFrame":
    """Return the rows of `df`, a frame or a stream, with the fields of the JSON object in the store under `prefix` +
    column `on`.

    `schema`: the fields as Spark DDL, such as `city STRING, lat DOUBLE`; null if there is no such key or object.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - an extra

    fields = StructType.fromDDL(schema)
    assert isinstance(fields, StructType)
    if on not in df.columns:
        raise OptionError("on", on, f"unknown column; the columns are {', '.join(df.columns)}")
    if twice := [name for name in fields.names if name in df.columns]:
        raise OptionError("schema", twice[0], "the rows already have this column: rename one of the two")
    join = Lookup(on, prefix, servers, cache_seconds, fields.json())
    return df.mapInArrow(join, StructType([*df.schema.fields, *fields.fields]))


class Lookup(msgspec.Struct, frozen=True):
    """The function that tasks run; it is sent to executors."""

    on: str
    prefix: str
    servers: str
    cache_seconds: float
    fields: str

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        cache = _cache(self.servers)
        with connect(self.servers) as store:

            def ask(keys: Sequence[bytes]) -> list[bytes | None]:
                values: list[bytes | None] = []
                for at in range(0, len(keys), WINDOW):
                    for answer in store.run([c.get(key) for key in keys[at : at + WINDOW]]):
                        if isinstance(answer, ClientError):
                            raise answer
                        values.append(answer)
                return values

            for batch in batches:
                yield self.joined(batch, lambda keys: cache.values(keys, self.cache_seconds, ask))

    def joined(
        self, batch: "pa.RecordBatch", values_of: Callable[[Sequence[bytes]], Mapping[bytes, bytes | None]]
    ) -> "pa.RecordBatch":
        import pyarrow as pa  # noqa: PLC0415 - on executors
        import pyarrow.compute as pc  # noqa: PLC0415
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
        from pyspark.sql.types import StructType  # noqa: PLC0415

        from braidlog.spark.source.values import structs  # noqa: PLC0415

        kind = pa.struct(list(to_arrow_schema(StructType.fromJson(msgspec.json.decode(self.fields)), timezone="UTC")))
        names = batch.column(self.on).cast(pa.string())
        unique = pc.unique(names).drop_null()
        keys = [f"{self.prefix}{name}".encode() for name in unique.to_pylist()]
        known = values_of(keys)
        fields, _ = structs(pa.array([known[key] for key in keys], pa.binary()), kind)
        rows = fields.take(pc.index_in(names, value_set=unique))
        columns = [pc.struct_field(rows, [number]) for number in range(kind.num_fields)]
        schema = pa.schema([*batch.schema, *kind])
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=schema)


class Cache:
    """Values by key, each with its expiry time. It lives in the Python worker, across tasks."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._values: dict[bytes, tuple[float, bytes | None]] = {}

    def values(
        self, keys: Sequence[bytes], seconds: float, ask: Callable[[Sequence[bytes]], list[bytes | None]]
    ) -> dict[bytes, bytes | None]:
        now = self._clock.monotonic()
        kept = {key: self._values[key][1] for key in keys if key in self._values and self._values[key][0] > now}
        missing = [key for key in keys if key not in kept]
        if missing:
            # Measured from before the request: the value may change while the answer is in flight.
            kept |= (new := dict(zip(missing, ask(missing), strict=True)))
            if len(self._values) + len(new) > CACHED_KEYS_MAX:
                self._values.clear()
            self._values |= {key: (now + seconds, value) for key, value in list(new.items())[:CACHED_KEYS_MAX]}
        return kept


_caches: dict[tuple[int, str], Cache] = {}


def _cache(servers: str) -> Cache:
    return _caches.setdefault((os.getpid(), servers), Cache())
