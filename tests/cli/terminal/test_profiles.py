"""Profiles, options of the URL, completion of names, a word that was mistyped: against a real node."""

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.braid import NOBODY, fresh, url_of

import braidlog
from braidlog import kv
from braidlog.cli import REFUSED, UNREACHED, USAGE, main
from braidlog.testing.server import ServerProcess


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BRAID_SERVER", raising=False)
    return tmp_path


def braid(*words: str, environment: dict[str, str] | None = None, text: str | None = None) -> Result:
    return CliRunner().invoke(main, list(words), env=environment, input=text)


def test_a_profile_is_used_until_something_else_is_said(braid_server_shared: ServerProcess) -> None:
    topic = fresh("profiled")
    url = url_of(braid_server_shared)
    assert braid("profile", "create", "here", "--server", url).exit_code == 0  # the first is in use
    assert braid("profile", "create", "nowhere", "--server", NOBODY).exit_code == 0
    assert braid("topic", "create", topic).exit_code == 0
    assert topic in braid("topic", "list", "-o", "name").output.splitlines()
    assert braid("topic", "list", "--profile", "nowhere", "--timeout", "1").exit_code == UNREACHED
    assert braid("topic", "list", environment={"BRAID_PROFILE": "nowhere"}).exit_code == UNREACHED
    assert braid("topic", "list", environment={"BRAID_SERVER": NOBODY}).exit_code == UNREACHED
    assert braid("profile", "use", "nowhere").exit_code == 0
    assert braid("topic", "list").exit_code == UNREACHED
    assert braid("topic", "list", "--server", url).exit_code == 0
    listed = braid("profile", "list").output.splitlines()
    assert [line.split() for line in listed[1:]] == [["here", url], ["*", "nowhere", NOBODY]]
    assert braid("profile", "delete", "nowhere").exit_code == 0
    assert braid("profile", "use", "nowhere").exit_code == REFUSED
    missing = braid("topic", "list", "--profile", "nowhere")
    assert missing.exit_code == USAGE
    assert "unknown profile 'nowhere'; profiles: here" in missing.output
    assert braid("profile", "use", "--none").exit_code == 0
    assert braid("profile", "use").exit_code == USAGE


def test_a_profile_keeps_no_secret(home: Path) -> None:
    token = home / "token"
    token.write_text("s3cret")
    refused = braid("profile", "create", "p", "--server", "kafka://ann:s3cret@h:9092")
    assert refused.exit_code == USAGE
    assert "stores no secrets" in refused.output
    made = braid("profile", "create", "p", "--server", "kafka://h", "--principal", "ann", "--token-file", str(token))
    assert made.exit_code == 0, made.output
    file = home / "home/braidlog/profiles.json"
    assert "s3cret" not in file.read_text()
    assert json.loads(file.read_text())["profiles"]["p"]["token_file"] == str(token)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    file.write_text("{")
    assert str(file) in braid("profile", "list").output


def test_who_has_no_home_has_no_profiles(
    home: Path, braid_server_shared: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (home / "file").touch()
    server = {"BRAID_SERVER": url_of(braid_server_shared)}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "file"))
    assert braid("topic", "list", environment=server).exit_code == 0
    assert "Not a directory" in braid("profile", "create", "p", "--server", NOBODY).output
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr("braidlog.cli.terminal.profiles.Path.home", homeless)
    assert braid("topic", "list", environment=server).exit_code == 0


def test_who_names_another_server_gets_nothing_of_the_profile(home: Path, braid_server_shared: ServerProcess) -> None:
    """Its token would be shown to a server that it is not for."""
    token = home / "token"
    token.write_text("of another server")
    braid("profile", "create", "p", "--server", NOBODY, "--principal", "ann", "--token-file", str(token))
    listed = braid("topic", "list", "--server", url_of(braid_server_shared))
    assert listed.exit_code == 0, listed.output


def test_options_of_the_url_and_compression(braid_server_shared: ServerProcess) -> None:
    topic, url = fresh("squeezed"), url_of(braid_server_shared)
    sent = braid("produce", topic, "--create", "--server", url, "--compression", "zstd", text="x" * 5000 + "\n")
    assert sent.exit_code == 0, sent.output
    read = braid("consume", topic, "--server", url, "-X", "isolation=read_committed")
    assert read.output == "x" * 5000 + "\n"
    for words in (["-X", "nonsense=1"], ["-X", "nonsense"]):
        assert braid("consume", topic, "--server", url, *words).exit_code == USAGE


def test_several_topics_and_patterns(braid_server_shared: ServerProcess) -> None:
    word, url = fresh("many"), url_of(braid_server_shared)
    for name in ("a", "b1", "b2"):
        sent = braid("produce", f"{word}-{name}", "--create", "--server", url, text=f"{name}\n")
        assert sent.exit_code == 0, sent.output
    wanted = ["-f", "%t %s\\n", "--server", url]
    for more in ([], ["-o", "-5"], ["--group", fresh("g")]):
        read = braid("consume", f"{word}-a", f"{word}-b*", *wanted, *more)
        assert sorted(read.output.splitlines()) == [f"{word}-{name} {name}" for name in ("a", "b1", "b2")]
    followed = braid("tail", f"{word}-b*", f"{word}-b1", "-o", "beginning", "-n", "2", *wanted)
    assert sorted(followed.output.splitlines()) == [f"{word}-{name} {name}" for name in ("b1", "b2")]
    none = braid("consume", f"{word}-nope*", "--server", url)
    assert none.exit_code == REFUSED
    assert "no topic matches" in none.output


def test_names_are_completed(braid_server_shared: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.cli.terminal.names.SECONDS_MAX", 60.0)  # nobody waits here
    topic, url = fresh("tab"), url_of(braid_server_shared)
    with braidlog.connect(url) as client:
        client.admin.create_topic(topic)
        client.admin.reset_group(f"g-{topic}", topic, {0: 0})
    keys = url_of(braid_server_shared, "mayfly")
    with kv.connect(keys) as store:
        store.set(f"k-{topic}", "v")
        store.set(f"k-{topic} {topic}", "no word of a shell")

    def tab(words: str, server: str = url) -> list[str]:
        shell = {
            "_BRAID_COMPLETE": "bash_complete",
            "COMP_WORDS": f"braid {words}",
            "COMP_CWORD": str(len(words.split())),
            "BRAID_SERVER": server,
            "BRAID_KV_URL": keys if server == url else "mayfly://127.0.0.1:1",
        }
        return CliRunner().invoke(main, [], env=shell, prog_name="braid").output.split()

    assert tab(f"consume {topic[:-1]}") == [f"plain,{topic}"]
    assert tab(f"topic describe {topic[:-1]}") == [f"plain,{topic}"]
    assert tab(f"group describe g-{topic[:-1]}") == [f"plain,g-{topic}"]
    assert tab(f"kv get k-{topic[:-1]}") == [f"plain,k-{topic}"]
    assert tab(f"kv del other k-{topic[:-1]}") == [f"plain,k-{topic}"]
    assert tab("consume t", NOBODY) == []
    assert tab("kv get k", NOBODY) == []


def test_a_word_that_was_mistyped() -> None:
    assert "Did you mean topic?" in braid("topci", "list").output
    assert "Did you mean describe?" in braid("topic", "descirbe").output
    far = braid("xyzzy")
    assert far.exit_code == USAGE
    assert "Did you mean" not in far.output


def test_settings_are_checked(home: Path) -> None:
    file = home / "braidlog.toml"
    file.write_text("[listeners.flux]\nport = 7000\n")
    sound = braid("config", "check", "-c", str(file), "--set", "listeners.mlog.port=7001")
    assert sound.output == "valid; 2 settings given, all others have their defaults\n"
    file.write_text("[listeners.flux]\nprot = 7000\n")
    wrong = braid("config", "check", "-c", str(file))
    assert wrong.exit_code == REFUSED
    assert "prot" in wrong.output
