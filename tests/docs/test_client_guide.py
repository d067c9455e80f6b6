"""Every block of the client's guide runs, against a node on free ports; its table is the drivers'."""

import re
import subprocess
import sys
from pathlib import Path

from tests.reference.pages import capability_table

import braidlog
from braidlog.client import errors
from braidlog.client.schemes import SCHEMES
from braidlog.testing.server import ServerProcess

GUIDE = (Path(__file__).resolve().parents[2] / "docs/guides/client.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_block_runs(braid_server: ServerProcess) -> None:
    """`braid dev` is the node of this test; the ports it would have are replaced by those it has."""
    said = ""
    for language, body in BLOCK.findall(GUIDE):
        if language == "console":
            assert body == "$ braid dev\n", "a command that is run by nobody"
            continue
        assert language == "python", f"a block in {language!r} is run by nobody"
        code = body
        for name, port in braid_server.ports.items():
            code = code.replace(f"127.0.0.1:{SCHEMES[name].port}", f"127.0.0.1:{port}")
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{body}\n{done.stderr}"
        said += done.stdout
    assert "orders/2 at 0" in said
    assert "mlog does not support keys; supported by: cursus, flux, kafka, rustlog" in said
    assert "'orders', 'payments', 'plain'" in said


def test_the_table_is_the_drivers() -> None:
    assert capability_table() in GUIDE


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", GUIDE):
        assert (Path(__file__).resolve().parents[2] / "docs/guides" / target).exists(), target


def test_the_table_of_errors_has_each_that_is_exported() -> None:
    kinds = {name for name in braidlog.__all__ if _is_client_error(getattr(braidlog, name))} - {"ClientError"}
    rows = GUIDE.partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+Error)` \|", rows, re.MULTILINE)) == kinds
    defined = {name for name, each in vars(errors).items() if _is_client_error(each)}
    assert kinds == defined - {"ClientError"}


def test_the_table_of_reasons_is_what_the_client_goes_by() -> None:
    for each in braidlog.Refusal:
        retried = "yes" if each.retriable else "no"
        assert f"| `{each.name}` | {each.value.text} | {retried} | {each.stored.value} |" in GUIDE


def _is_client_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, braidlog.ClientError)
