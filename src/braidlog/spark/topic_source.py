"""`format("braidlog")`: topics, read and written.

Chooses the reader or writer of a query. The module that Spark discovers (`pyspark_braidlog`) takes its class from
here.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from braidlog.spark.short_errors import short_errors
from braidlog.spark.source.options import Query
from braidlog.spark.worker_memory import freeze_imports


class TopicSource(DataSource):
    """Made by Spark for each `load()` and `start()`, with the options of the query."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        freeze_imports()

    @classmethod
    def name(cls) -> str:
        return "braidlog"

    @short_errors
    def schema(self) -> str:
        from braidlog.spark.source.columns import default_schema  # noqa: PLC0415 - Arrow is needed only for reading

        ddl = default_schema(Query(self.options, streaming=None))
        freeze_imports()
        return ddl

    @short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from braidlog.spark.source.readers import TopicReader  # noqa: PLC0415 - as above

        return TopicReader(Query(self.options, streaming=False), schema)

    @short_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from braidlog.spark.source.readers import TopicStreamReader  # noqa: PLC0415 - as above

        return TopicStreamReader(Query(self.options, streaming=True), schema)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's form
        from braidlog.spark.sink.writers import batch_writer  # noqa: PLC0415 - Arrow is needed only for writing

        return batch_writer(schema, self.options, overwrite)

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001 - Spark's form
        from braidlog.spark.sink.writers import stream_writer  # noqa: PLC0415 - as above

        return stream_writer(schema, self.options, overwrite)
