"""An example that does not run is a lie: every file in examples/ is run as a person would run it."""

import fcntl
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.debian import have

import braidlog
from braidlog.cli import main
from braidlog.testing.server import ServerProcess

SECONDS_MAX = 600
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, request: pytest.FixtureRequest) -> None:
    on_spark = example.name.startswith("spark_")
    if on_spark:
        have("java", "openjdk-17-jre-headless")
        request.getfixturevalue("spark_home")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"
    assert on_spark or done.stderr == ""  # Java talks while it starts


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_says_what_it_shows(example: Path) -> None:
    assert "promise" in example.read_text().split('"""')[1]


@pytest.mark.parametrize("name", ["crontab", "airflow_dag.py"])
def test_commands_of_schedules_are_commands(name: str) -> None:
    """Neither cron nor Airflow is here: what they would call is a command with these options."""
    text = (EXAMPLES[0].parent / "pipeline" / name).read_text()
    compile(text if name.endswith(".py") else "", name, "exec")
    found = re.findall(r"braid (pipeline [^\"'`&|>]*?/?\S*)(?= 2?>| \|\||\")", text.replace("{FOLDER}", "/srv/clicks"))
    assert len(found) == 3, found
    for words in found:
        arguments = shlex.split(words)
        braid = click.Context(main, **main.context_settings)  # a command keeps the help of who asks first
        group = main.get_command(braid, arguments[0])
        assert isinstance(group, click.Group)
        command = group.get_command(click.Context(group, parent=braid), arguments[1])
        assert command is not None, words
        assert command.make_context(arguments[1], arguments[2:], parent=braid).params["folder"] == "/srv/clicks"


def test_lines_of_the_crontab_are_silent_until_somebody_is_to_be_told(
    braid_server: ServerProcess, tmp_path: Path
) -> None:
    """As cron runs them, by sh: what they print is mailed."""
    text = (EXAMPLES[0].parent / "pipeline" / "crontab").read_text().replace("/srv/clicks", str(tmp_path))
    run, check, _ = (line.split(maxsplit=5)[5] for line in text.splitlines() if line and not line.startswith("#"))
    settings = tmp_path / "pipeline.toml"
    settings.write_text(
        f'name = "clicks"\n[source]\ntopics = ["clicks"]\nservers = "127.0.0.1:{braid_server.ports["kafka"]}"\n'
        '[silver]\nschema = "id string"\n[alerts]\nlag_records = 1\n'
    )
    with braidlog.connect(f"kafka://127.0.0.1:{braid_server.ports['kafka']}") as client:
        client.admin.create_topic("clicks")
        producer = client.producer()
        producer.send_and_wait("clicks", b"{}")
        assert by_cron(check) == (0, "")
        producer.send_and_wait("clicks", b"{}")
    code, said = by_cron(check)
    assert (code, said.splitlines()[0]) == (1, "braid: bronze is 2 records behind; lag_records = 1")
    # A run that cannot be is told of, and one that is due while another is under way is not.
    settings.write_text(settings.read_text().replace('topics = ["clicks"]', 'topics = ["nowhere"]'))
    code, said = by_cron(run)
    assert "no topic 'nowhere'" in said
    (tmp_path / "run.log").write_text("of the run that is under way")
    with (tmp_path / "cron.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert by_cron(run) == (0, "")
    assert (tmp_path / "run.log").read_text() == "of the run that is under way"


def by_cron(line: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={**os.environ, "PATH": path},
    )
    return done.returncode, done.stdout


def test_first_log_run_twice_keeps_the_first_records(tmp_path: Path) -> None:
    [first] = [path for path in EXAMPLES if path.name == "first_log.py"]
    for expected in (2, 4):
        done = subprocess.run([sys.executable, first, tmp_path / "data"], capture_output=True, text=True, check=True)
        assert len([line for line in done.stdout.splitlines() if line[0].isdigit()]) == expected
