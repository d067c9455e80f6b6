"""What a pipeline.toml may say: every refusal is one sentence that names the setting."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from braidlog import BrokerError
from braidlog.cli import main
from braidlog.spark.pipeline import config, templates
from braidlog.spark.pipeline.config import FILE_NAME, parse
from braidlog.spark.pipeline.project import open_project

LEAST = """
name = "clicks"
[source]
topics = ["clicks"]
[silver]
schema = "user string"
"""


def test_the_least_that_is_enough() -> None:
    found = parse(LEAST)
    assert found.source is not None
    assert (found.source.servers, found.source.starting) == ("127.0.0.1:9092", "earliest")
    assert found.tables.format == "delta"
    assert found.gold.windows is None


def in_store(storage: str, more: str = "", *, tables: str = "") -> str:
    return f'storage = "{storage}"\n{more}\n{LEAST}\n[tables]\n{tables}'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = ", "is not valid TOML"),
        ('name = "clicks"', 'kind = "events" needs the sections [source] and [silver]'),
        ('name = "clicks"\nkind = "wire-log"', "needs a section [wire_log]"),
        ('name = "clicks"\nkind = "wire-log"\n[wire_log]\nlog = "x"\nbins = 1', "bins = 1: must be 2 to 1000"),
        ('name = "clicks"\nkind = "other"', "[kind] Invalid enum value 'other'"),
        ('kind = "events"', "Object missing required field `name`"),
        (LEAST.replace('"clicks"\n', '"My Clicks"\n', 1), "name = 'My Clicks': use lower-case letters"),
        (in_store("gs://b/x"), "storage = 'gs://b/x': delta tables must be in a folder, or below s3://"),
        (in_store("s3://b/x", 'checkpoints = "s3a://b/y"'), "checkpoints = 's3a://b/y': use a folder on a disk"),
        (
            in_store("s3://b/x", tables='format = "iceberg"'),
            "[tables.catalog]: Iceberg tables in an object store need a",
        ),
        (
            in_store("s3://b/x", tables="catalog = { type = 'sql' }"),
            "[tables.catalog]: Delta tables do not use a catalog",
        ),
        (
            in_store("elsewhere", 'checkpoints = "x"'),
            "checkpoints: only for tables in an object store; storage = 'elsewhere'",
        ),
        (in_store("elsewhere", tables="store = { a = 'b' }"), "[tables.store]: only for tables in an object store"),
        (
            'name = "c"\nkind = "sdp"\nstorage = "s3://b/x"\n[source]\ntopics = ["c"]',
            "storage = 's3://b/x': only a pipeline of kind = \"events\"",
        ),
        (LEAST + "schemas = 1", "[silver] unknown setting 'schemas'; did you mean 'schema'?"),
        (LEAST + "xyzzy = 1", "[silver] unknown setting 'xyzzy'; the settings are schema, required"),
        (LEAST + 'required = "user"', "[silver.required] Expected `array`, got `str`"),
        (LEAST + '[silver.dedup]\nwithin = "soon"', "[silver.dedup] within = 'soon': a duration is written"),
        (LEAST + '[silver.dedup]\nby = ["a b"]', "[silver.dedup] by: 'a b' is not a valid column name"),
        (LEAST + '[run]\ntrigger = "0 seconds"', "[run] trigger = '0 seconds'"),
        (LEAST + '[tables]\nformat = "orc"', "[tables.format] Invalid enum value 'orc'"),
        (
            LEAST + '[tables]\nformat = "parquet"',
            "[tables] format = 'parquet': there is no sink for plain Parquet files: use delta or iceberg, or Spark's",
        ),
        (
            LEAST + '[tables.partition_by]\nsilvre = ["day"]',
            "[tables.partition_by] silvre: unknown table; the tables are bronze, gaps, silver, windows",
        ),
        (LEAST + "[tables]\nevolution = 'drop'", "[tables.evolution] Invalid enum value 'drop'"),
        (LEAST + "[tables]\ntarget_file_bytes = 0", "[tables] target_file_bytes = 0: must be at least 1"),
        (LEAST.replace('["clicks"]', "[]"), "[source] topics: name at least one"),
        (
            LEAST + '[[expectations]]\nstage = "gold"\nname = "a"\ncheck = "true"',
            "[[expectations]] a: unknown stage 'gold'; the stages are bronze, silver",
        ),
        (
            LEAST + '[[expectations]]\nstage = "silver"\nname = "a"\ncheck = "true"\non_violation = "cry"',
            "Invalid enum value 'cry'",
        ),
        (
            LEAST + '[[expectations]]\nstage = "silver"\nnme = "a"',
            "[expectations[]] unknown setting 'nme'; did you mean",
        ),
        (
            LEAST + '[tables.upsert]\ngold = { key = ["id"], order = "at" }',
            "[tables.upsert] gold: unknown table; the tables are bronze",
        ),
        (
            LEAST + '[tables.upsert]\nbronze = { key = ["id"], order = "at" }',
            "bronze: it keeps a row for every record",
        ),
        (LEAST + '[tables.upsert]\nsilver = { key = [], order = "at" }', "silver: key = [] names no column"),
        (
            LEAST
            + '[tables]\npartition_by = { silver = ["day"] }\nupsert = { silver = { key = ["id"], order = "at" } }',
            "silver: an upserted table cannot be in partition_by as well",
        ),
        (
            'name = "a"\nkind = "sdp"\n[source]\ntopics = ["t"]\n[tables.upsert]\nsilver = { key = ["id"], order = "at" }',
            "Spark's own pipelines only append to sinks",
        ),
        (LEAST + '[[stages]]\nname = "silver"\ntransform = "x.sql"\ntable = "x"', "'silver' is taken"),
        (LEAST + '[[stages]]\nname = "own"\ntransform = "x.sql"', "own: set exactly one of table and topic"),
        (
            LEAST + '[[stages]]\nname = "own"\ntransform = "x.sql"\nreads = "windows"\ntable = "t"',
            "own reads windows, but there is no [gold.windows]",
        ),
        (
            LEAST + '[[stages]]\nname = "own"\ntransform = "x.sql"\ntable = "../t"',
            "table = '../t' is not lower-case letters",
        ),
    ],
    ids=lambda text: text[-40:],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BrokerError) as caught:
        parse(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("template", templates.TEMPLATES)
def test_a_template_says_what_holds_without_it(template: str, tmp_path: Path) -> None:
    """A setting behind a # shows its default: uncommenting all of them changes nothing."""
    done = CliRunner().invoke(main, ["pipeline", "init", str(tmp_path / "my_clicks"), "--template", template])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "my_clicks"
    found = open_project(folder).pipeline
    assert found.name == "my-clicks"
    text = (folder / FILE_NAME).read_text()
    named = {f'# topic = "my-clicks.{layer}"': '# topic = ""' for layer in ("silver", "dead-letters", "windows")} | {
        '# group = "my-clicks"': '# group = ""',
        '# prefix = "my-clicks:"': '# prefix = ""',
    }
    for shown, default in named.items():
        assert template != "events" or shown in text
        text = text.replace(shown, default)
    kept = []
    for line in text.splitlines():
        if line.startswith(("# [", "# first")):
            break_off = "[[stages]]" in line
            if break_off:
                kept.append("[report]")
                kept.append(text.rpartition("[report]\n")[2].removeprefix("# "))
                break
            continue
        is_setting = (
            line.startswith("# ") and " = " in line and not line.startswith("# on_violation") and '"spark.' not in line
        )
        kept.append(line.removeprefix("# ") if is_setting else line)
    assert parse("\n".join(kept)) == found

    again = CliRunner().invoke(main, ["pipeline", "init", str(folder), "--template", template])
    assert again.exit_code == 3
    assert "exists already; nothing was written" in again.output


def test_a_project_that_is_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["pipeline", "status", str(tmp_path)])
    assert done.exit_code == 3
    assert done.stderr == f"braid: {tmp_path / FILE_NAME} does not exist; `braid pipeline init {tmp_path}` creates it\n"
    assert set(config.BUILT_IN) >= {"bronze", "silver"}
