"""`braid cluster certificates`: nodes can use what it makes, and it replaces nothing."""

from pathlib import Path

from click.testing import CliRunner, Result
from cryptography import x509

from braidlog.cli import main
from braidlog.server.peers.settings import PeersConfig


def braid(folder: Path, *nodes: str) -> Result:
    return CliRunner().invoke(main, ["cluster", "certificates", str(folder), *nodes])


def test_nodes_can_use_them_and_more_can_be_made_later(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    said = braid(folder, "1", "2")
    assert (said.exit_code, said.output.count("for node ")) == (0, 2)
    authority = (folder / "braidlog-ca.pem").read_bytes()
    assert braid(folder, "3").exit_code == 0
    assert (folder / "braidlog-ca.pem").read_bytes() == authority
    for node in (1, 2, 3):
        ca, cert, key = (str(folder / name) for name in ("braidlog-ca.pem", f"node-{node}.pem", f"node-{node}.key"))
        assert PeersConfig(host="0.0.0.0", ca=ca, cert=cert, key=key).tls() is not None


def test_the_addresses_of_a_node_are_in_its_certificate(tmp_path: Path) -> None:
    assert braid(tmp_path, "1=10.0.0.1,one.example", "2").exit_code == 0
    made = x509.load_pem_x509_certificate((tmp_path / "node-1.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node-1", "one.example"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.1", "127.0.0.1"]
    for wrong in ("one", "-1", "=10.0.0.1", ""):
        said = braid(tmp_path / "wrong", "--", wrong)
        assert (said.exit_code, "pass its number, or number=address" in said.output) == (2, True)


def test_nothing_is_replaced(tmp_path: Path) -> None:
    braid(tmp_path, "1")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = braid(tmp_path, "1")
    assert said.exit_code != 0
    assert "node-1.key already exists and is not replaced" in said.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "braidlog-ca.pem").unlink()
    assert "braidlog-ca.key already exists" in braid(tmp_path, "2").output
