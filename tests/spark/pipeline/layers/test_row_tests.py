"""`braid pipeline test`: the tests that templates come with hold, and one that does not hold says what differs."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from braidlog import BrokerError
from braidlog.cli import main
from braidlog.spark.pipeline import operations, templates
from braidlog.spark.pipeline.layers import row_tests
from braidlog.spark.pipeline.project import Project, open_project
from braidlog.spark.pipeline.replay import backfill


def made(template: str, folder: Path) -> tuple[Project, Path]:
    templates.write(template, folder, "shop")
    project = open_project(folder)
    (test,) = row_tests.folders(project, frozenset())
    return project, test


@pytest.mark.parametrize("template", ["events", "sdp"])
def test_a_template_comes_with_a_test_that_holds(template: str, spark: SparkSession, tmp_path: Path) -> None:
    project, test = made(template, tmp_path)
    (test / "bronze.jsonl").write_text("".join(f'{{"offset": {offset}}}\n' for offset in range(8)))
    if template == "events":
        (test / "state.jsonl").write_text('{"key": "shop:a1"}\n{"key": "shop:a2"}\n')
        (test / "windows-table.jsonl").write_text('{"type": "paid", "latency_p50": 20}\n')
    else:
        (test / "events.jsonl").write_text('{"id": "a1"}\n' * 2 + '{"id": "a2"}\n' * 2)  # a view
    compared = row_tests.run(spark, project, test)
    assert {each.stage: each.sentences() for each in compared if not each.is_right} == {}
    assert {each.stage for each in compared} > {"bronze", "silver", "windows"}
    assert not project.storage.exists()


def test_a_table_that_is_upserted_has_the_last_row_of_each_key(spark: SparkSession, tmp_path: Path) -> None:
    _, test = made("events", tmp_path)
    text = (tmp_path / "pipeline.toml").read_text()
    assert "\n# upsert = {} " in text
    setting = 'upsert = { silver = { key = ["type"], order = "_offset" } } '
    (tmp_path / "pipeline.toml").write_text(text.replace("\n# upsert = {} ", f"\n{setting}"))
    project = open_project(tmp_path)
    (test / "silver-table.jsonl").write_text('{"id": "a2", "type": "paid"}\n')
    compared = row_tests.run(spark, project, test)
    assert {each.stage: each.sentences() for each in compared if not each.is_right} == {}
    with pytest.raises(BrokerError, match="table silver has one row per key"):
        backfill.check(project, {})


def test_what_differs_is_told_row_by_row(spark: SparkSession, tmp_path: Path) -> None:
    project, test = made("events", tmp_path)
    for path in test.glob("*.jsonl"):
        if path.name not in ("records.jsonl", "silver.jsonl"):
            path.unlink()
    silver = test / "silver.jsonl"
    silver.write_text('{"id": "a1", "amount": 9.5}\n{"amount": 30, "id": "a2"}\n')
    (compared,) = row_tests.run(spark, project, test)
    assert compared.sentences() == [
        "first: silver: 2 rows; - 1 missing, + 1 not expected",
        '  + {"id":"a2","amount":3.0}',
        '  - {"id":"a2","amount":30.0}',
    ]
    row_tests.run(spark, project, test, update=True)
    assert silver.read_text() == '{"id":"a1","amount":9.5}\n{"id":"a2","amount":3.0}\n'
    silver.write_text("")  # no rows
    (compared,) = row_tests.run(spark, project, test)
    assert (compared.count, compared.missing, len(compared.unexpected)) == (2, (), 2)

    for text, words in (
        ('{"id": "a1", "amont": 1}\n', "silver has no column 'amont'; it has id, type"),
        ('{"amount": "much"}\n', "a row does not fit the columns of silver, amount double"),
        ("\n[1]\n", r"silver\.jsonl:2: not a JSON object"),
    ):
        silver.write_text(text)
        with pytest.raises(BrokerError, match=words):
            row_tests.run(spark, project, test)


def test_the_command_ends_with_1_where_rows_differ(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session of the tests; only its start is not the command's own."""
    _, test = made("events", tmp_path)
    for path in test.glob("*.jsonl"):
        if path.name not in ("records.jsonl", "silver.jsonl"):
            path.unlink()
    monkeypatch.setattr(operations, "test_session", lambda *_: nullcontext(spark))

    def run(*words: str) -> tuple[int, list[str]]:
        done = CliRunner().invoke(main, ["pipeline", "test", str(tmp_path), *words])
        return done.exit_code, done.output.splitlines()

    assert run() == (0, ["first: silver: 2 rows, as expected"])
    (test / "silver.jsonl").write_text('{"id": "a1", "amount": 9.5}\n')
    code, said = run("--only", "first")
    assert (code, said[0]) == (1, "first: silver: 2 rows; - 0 missing, + 1 not expected")
    assert said[-1] == "braid: 1 stage differs from the expected rows"
    assert run("--update")[0] == 0
    assert run()[0] == 0


def test_a_test_that_says_nothing_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    project, test = made("events", tmp_path)
    with pytest.raises(BrokerError, match="unknown test 'second'; the tests are first"):
        row_tests.folders(project, frozenset({"second"}))
    (test / "gold.jsonl").touch()
    with pytest.raises(BrokerError, match="unknown stage 'gold'; the stages are bronze, silver, dead-letters"):
        row_tests.run(spark, project, test)
    for path in test.glob("*.jsonl"):
        if path.name != "records.jsonl":
            path.unlink()
    with pytest.raises(BrokerError, match="has no expected rows"):
        row_tests.run(spark, project, test)
    (test / "silver.jsonl").touch()
    (test / "records.jsonl").write_text('{"valu": {}}\n')
    with pytest.raises(BrokerError, match=r"records\.jsonl:1: not a record in JSON, as .*: .*valu"):
        row_tests.run(spark, project, test)
    (test / "records.jsonl").unlink()
    with pytest.raises(BrokerError, match=r"there are no tests: write records to .*/tests/NAME/records\.jsonl"):
        row_tests.folders(project, frozenset())
