"""Secrets as they stand in settings, logs and URLs are taken out; what is none stays."""

import pytest

from braidlog.model.redaction import without_credentials, without_secrets, without_secrets_in

WORD = "hunter2-xyz"


@pytest.mark.parametrize(
    "text",
    [
        f"connects to https://ann:{WORD}@10.0.0.1:2379, and waits",
        f"kafka://{WORD}@h",
        f'password = "{WORD}"',
        f"cluster.password={WORD}",
        f"{{'BRAID_CLUSTER__TOKEN': '{WORD}'}}",
        f'"s3.secret-access-key": "{WORD}"',
        f"Authorization: Bearer {WORD}",
        f"authorization: basic {WORD}==",
        f"AUTH ann {WORD}",
        f"ann = SCRAM-SHA-256$4096:{WORD}$a:b",
        f"SCRAM-SHA-512=[iterations=4096,password={WORD}]",
        f"-----BEGIN PRIVATE KEY-----\n{WORD}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{WORD}",
        f"sasl.jaas.config=PlainLoginModule required username=ann password={WORD};",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    assert WORD not in without_secrets(text)
    assert WORD not in str(without_secrets_in({"line": [text]}))


def test_known_secrets_are_found_where_they_look_like_nothing() -> None:
    assert without_secrets(f"ann said {WORD} twice", [WORD]) == "ann said … twice"
    assert without_secrets("of a kind", ["a"]) == "of a kind", "too short to be looked for"


def test_what_is_no_secret_stays() -> None:
    text = 'braidlog_group_lag_records{group="billing"} 5\norders/3 is offline: disk full; kafka on 10.0.0.1:9092, see https://h/x'
    assert without_secrets(text) == text
    value = {"topic": "orders", "tokens": 3, "settings": [{"name": "admin.token", "value": "…"}], "at": None}
    assert without_secrets_in(value) == value
    assert without_secrets_in({"password": "word", "secret": {"a": "b"}}) == {"password": "…", "secret": {"a": "b"}}
    assert without_credentials("etcd://a:b@h, etcd://h") == "etcd://…@h, etcd://h"
