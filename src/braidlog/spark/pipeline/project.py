"""A project folder: its settings, and the names of its topics, tables and checkpoints.

Pipelines with different names share no topic and, in different folders, no file.
"""

from pathlib import Path
from typing import Final

import msgspec

from braidlog.spark.pipeline import config
from braidlog.spark.pipeline.config import Pipeline, Silver, Source, is_uri, refusal

SOURCE: Final = "source"
FLOWS: Final = "flows"
"""The folder of the checkpoints of Spark's own pipelines, in the storage folder."""
TESTS: Final = "tests"
"""The folder of a project's row tests."""


class Project(msgspec.Struct, frozen=True):
    """A folder with a `pipeline.toml`."""

    folder: Path
    pipeline: Pipeline

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def is_in_store(self) -> bool:
        """Whether its tables are in an object store; checkpoints never are."""
        return is_uri(self.pipeline.storage)

    @property
    def storage(self) -> Path:
        """The local folder of its files; an object store holds only tables."""
        own = self.pipeline.checkpoints or "storage" if self.is_in_store else self.pipeline.storage
        return self.folder / own

    @property
    def source(self) -> Source:
        if self.pipeline.source is None:
            raise refusal(f"{self.name} is a pipeline of kind {self.pipeline.kind}: it reads no topics")
        return self.pipeline.source

    @property
    def silver(self) -> Silver:
        if self.pipeline.silver is None:
            raise refusal(f"{self.name} is a pipeline of kind {self.pipeline.kind}: it has no layers")
        return self.pipeline.silver

    def table(self, name: str) -> Path:
        assert not self.is_in_store
        return self.storage / "tables" / name

    def table_names(self) -> list[str]:
        """Return the tables of a pipeline of kind `events`, as far as its settings show them."""
        names = ["bronze", "silver"]
        names += ["gaps"] if self.silver.versions else []
        names += ["windows"] if self.pipeline.gold.windows else []
        return names + [own.table for own in self.pipeline.stages if own.table]

    def place(self, table: str) -> str:
        """Return the location of a table for readers: a folder, a URI, or its name in the catalog."""
        if not self.is_in_store:
            return str(self.table(table))
        if self.pipeline.tables.format == "iceberg":
            return f"{self.name.replace('-', '_')}.{table}"
        return f"{self.pipeline.storage.rstrip('/')}/tables/{table}"

    def replaced(self, name: str, generation: int) -> Path:
        """Return the folder of a replaced table."""
        return self.storage / "replaced" / f"{name}-{generation}"

    @property
    def is_declarative(self) -> bool:
        return self.pipeline.kind == "sdp"

    def flow(self, name: str) -> Path:
        """Return the state folder of a declarative pipeline's flow; Spark names it after its sink."""
        return self.storage / FLOWS / "_checkpoints" / name

    def flows(self) -> list[str]:
        """Return the flows of a declarative pipeline that have run."""
        home = self.flow("")
        return sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []

    def checkpoint(self, stage: str, generation: int) -> Path:
        if self.is_declarative:
            # Spark increments this number when a pipeline is fully refreshed.
            runs = [path for path in self.flow(stage).glob("*/*") if path.name.isdigit()]
            return max(runs, key=lambda path: int(path.name), default=self.flow(stage))
        return self.storage / "checkpoints" / f"{stage}-{generation}"

    @property
    def silver_topic(self) -> str:
        return self.silver.topic or f"{self.name}.silver"

    @property
    def dead_letter_topic(self) -> str:
        return self.pipeline.dead_letters.topic or f"{self.name}.dead-letters"

    @property
    def windows_topic(self) -> str:
        windows = self.pipeline.gold.windows
        return (windows.topic if windows else "") or f"{self.name}.windows"

    def layer_topics(self, layer: str) -> tuple[str, ...]:
        """Return the topics that hold a layer."""
        if layer == SOURCE:
            return self.source.topics
        return {"silver": (self.silver_topic,), "windows": (self.windows_topic,)}[layer]


def seconds_of(span: str) -> float:
    """Parse a duration of a pipeline file."""
    count, unit = span.split()
    return int(count) * _SECONDS[unit.removesuffix("s")]


_SECONDS: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def open_project(folder: str | Path) -> Project:
    root = Path(folder).resolve()
    return Project(root, config.read(root))
