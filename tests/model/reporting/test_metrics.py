"""The text of the metrics, as another program reads it."""

from prometheus_client.parser import text_string_to_metric_families

from braidlog.model.reporting.metric_rows import HISTOGRAM, Buckets, MetricRow
from braidlog.model.reporting.metrics import LOG_TABLE
from braidlog.model.reporting.node_report import LagReport, LogReport, PartitionReport
from braidlog.model.reporting.prometheus_text import _lines, _text, log_lines_of


def test_labels_come_back_as_they_were() -> None:
    group = 'a"b\\c\nd=,{}'
    report = LogReport(
        partitions=[PartitionReport("t", 1, 2, 7, 8, 99), PartitionReport("t", 2, fault="gone", is_offline=True)],
        lags=[LagReport(group, "t", 1, None, 7, 5)],
    )
    families = {each.name: each for each in text_string_to_metric_families(_text(log_lines_of(report)).decode())}
    assert set(families) == {row.name for row in LOG_TABLE}
    assert [(s.labels, s.value) for s in families["braidlog_group_lag_records"].samples] == [
        ({"group": group, "topic": "t", "partition": "1"}, 5.0)
    ]
    assert [s.value for s in families["braidlog_partition_high_watermark"].samples] == [7.0]
    assert [s.value for s in families["braidlog_partitions_offline"].samples] == [1.0]


def test_a_histogram_is_cumulative() -> None:
    row = MetricRow("x_seconds", HISTOGRAM, "What it took.", ("kind",), lambda _: ())
    counts = [1] * 40
    text = _text(_lines(row, [Buckets(("k",), counts, 2.5)])).decode()
    [family] = text_string_to_metric_families(text)
    assert family.type == "histogram"
    buckets = [s.value for s in family.samples if s.name == "x_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == len(counts)
    assert {s.name: s.value for s in family.samples if not s.name.endswith("_bucket")} == {
        "x_seconds_count": 40.0,
        "x_seconds_sum": 2.5,
    }
