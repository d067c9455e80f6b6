"""HTTPS on the admin port."""

import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme

from braidlog.model.errors import BrokerError
from braidlog.server.config import load_config
from braidlog.testing.server import ServerProcess


def test_the_admin_port_speaks_tls_and_its_cookie_stays_there(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    for part in issued.cert_chain_pems:
        part.write_to_path(tmp_path / "cert.pem", append=True)
    settings = [f"admin.tls.cert={tmp_path}/cert.pem", f"admin.tls.key={tmp_path}/key.pem"]
    words = [word for each in settings for word in ("--set", each)]
    with ServerProcess(tmp_path / "data", *words, admin=True) as node:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        url = node.admin_url.replace("http://", "https://")
        with urllib.request.urlopen(f"{url}/topics", context=context, timeout=60) as answer:
            assert answer.status == 200
            assert "Secure" in [part.strip() for part in answer.headers["set-cookie"].split(";")]
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            urllib.request.urlopen(url, timeout=60)


def test_a_certificate_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    node = ServerProcess(tmp_path / "data", "--set", f"admin.tls.cert={tmp_path}/none.pem", admin=True)
    with pytest.raises(RuntimeError, match="TLS with"), node:
        pass


def test_there_is_no_authority_for_browsers() -> None:
    with pytest.raises(BrokerError, match="client_ca"):
        load_config(None, {}, {"admin.tls.cert": "c.pem", "admin.tls.client_ca": "ca.pem"})
