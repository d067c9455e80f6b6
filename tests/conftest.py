"""What all tests share: hypothesis without clocks (a busy machine is slow, not wrong), the order, a Spark that starts small."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "braidlog",
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("braidlog")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's job in the background is born deaf to SIGINT, and so is what it starts: a test would wait for ever for a command
    # that it has interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
DEAREST = ("spark", "docs", "interop", "console", "attack", "test_examples.py")
"""What has the longest tests comes first, so that no worker waits for the other's last one; and Spark's come to one worker:
the other begins with the second half, and then takes over from the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(DEAREST)}
    items.sort(key=lambda item: ranks.get(item.path.relative_to(TESTS).parts[0], len(ranks)))


_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.sql.shuffle.partitions": "2",
    # Rows are few and queries many: to compile each of them would cost more than it runs.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Spark for few rows, for this process and those it starts, as the defaults of its folder. And without the zip of its Python
    modules: it stands first on the path of each Python worker, and what comes out of a zip is compiled anew each time, 0.9 s of
    processor time for a start, against 0.3 s with the package that is installed."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = tmp_path_factory.mktemp("spark-home")
    for entry in Path(found.origin).parent.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    (home / "conf").mkdir()
    lines = [f"{name} {value}\n" for name, value in SPARK_DEFAULTS.items()]
    (home / "conf" / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield home
