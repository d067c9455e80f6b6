"""Who a client is and what it may do, over a socket: PLAIN and SCRAM with three client libraries, lists, users, strangers."""

import asyncio
import base64
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.adapters.kafka.asker import Asker
from tests.adapters.kafka.client import batch_of, produce_of
from tests.adapters.kafka.clients import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AIOKafkaProducer,
    KafkaException,
    KafkaProducer,
    Producer,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tests.adapters.kafka.test_served import Door, Talk
from tests.waiting import until

from braidlog.adapters.kafka.authentication.scram import Scram, ScramError
from braidlog.cluster.metadata.events import Credential
from braidlog.security.authorization import Operation, Rule, hash_token
from braidlog.security.users import Hash, credential_of, salt_password, show_verifier
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import security as s
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.messages import transactions as t

WAIT_SECONDS = 60.0
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def verifier(password: bytes, kind: Hash = Hash.SHA_256) -> str:
    return show_verifier(kind, credential_of(kind, SALT, 4096, salt_password(kind, password, SALT, 4096)))


CONFIGURATION = f"""
[auth]
failure_delay_seconds = 0.01
failure_delay_seconds_max = 0.05
[auth.unauthenticated]
seconds_max = 1.0
[auth.tokens]
root = "{hash_token(b"root's token").hex()}"
[auth.users]
alice = "{verifier(b"pencil")}"
admin = "{verifier(b"admin's", Hash.SHA_512)}"
[[auth.rules]]
principal = "root"
operations = ["*"]
[[auth.rules]]
principal = "admin"
operations = ["*"]
[[auth.rules]]
principal = "alice"
operations = ["read", "write", "create"]
topic = "alice*"
group = "alice*"
"""


def start(folder: Path) -> ServerProcess:
    path = folder / "braid.toml"
    path.write_text(CONFIGURATION, encoding="utf-8")
    return ServerProcess(folder / "data", "--config", str(path))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start(tmp_path_factory.mktemp("secure")) as process:
        yield process


def sasl(name: str, password: str, mechanism: str = "PLAIN") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
    }


def log_in(asker: Asker, name: str, password: str, version: int = 2) -> Any:
    assert asker.ask(s.SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    return asker.ask(s.SaslAuthenticateRequest(f"\0{name}\0{password}".encode()), version)


def produce(address: str, topic: str, settings: dict[str, Any]) -> str | None:
    """The name of the error, None if it went well."""
    errors: list[str | None] = []
    producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 5000, **settings})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else None))
    producer.flush(WAIT_SECONDS)
    return errors[0]


# -- the exchange ------------------------------------------------------------------------------------------------


def exchange(find: Any = None, nonce: str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0") -> Scram:
    credential = credential_of(Hash.SHA_256, SALT, 4096, salt_password(Hash.SHA_256, b"pencil", SALT, 4096))
    known = find or (lambda name: credential if name == "user" else None)
    return Scram(Hash.SHA_256, known, nonce, decoy)


def decoy(name: str) -> Credential:
    return Credential(b"decoy of " + name.encode(), 8192, bytes(32), bytes(32))


FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def test_the_example_of_rfc_7677() -> None:
    scram = exchange()
    assert scram.first(FIRST) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert scram.final(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert scram.name == "user"
    with pytest.raises(ScramError):
        scram.final(FINAL)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=user,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,,n=,r=x",
        b"n,,n=us=er,r=x",
        b"n,a=other,n=user,r=x",
        b"\xff",
        b"n,,n=user,r=" + b"x" * 5000,
    ],
)
def test_first_messages_that_are_none(wrong: bytes) -> None:
    with pytest.raises(ScramError):
        exchange().first(wrong)


def test_final_messages_that_prove_nothing() -> None:
    for wrong in (
        b"",
        FINAL.replace(b"dHzb", b"AHzb"),
        FINAL.replace(b"c=biws", b"c=eSws"),
        FINAL.replace(b"r=rOpr", b"r=xxxx"),
        FINAL[:-4],
        FINAL.replace(b"p=", b"p=!"),
    ):
        scram = exchange()
        scram.first(FIRST)
        with pytest.raises(ScramError):
            scram.final(wrong)
    with pytest.raises(ScramError):
        exchange().final(FINAL)


KCAT = "cXxid7HQwdnK3PMVRpy32~bo8RTzkZXE"
"""The nonce of Debian's kcat 1.7.1 with librdkafka 2.0.2; its messages as they came."""
KCAT_FIRST = b"n,,n=user,r=cXxid7HQwdnK3PMVRpy32~bo8RTzkZXE"
KCAT_FINAL = (
    b"c=biws,r=cXxid7HQwdnK3PMVRpy32~bo8RTzkZXEcXxid7HQwdnK3PMVRpy32~bo8RTzkZXEWlu_53wyBoKSwCk2CxjX_UzrTk2fHmPV,"
    b"p=qax5E1YimuCxGe7bX9cxMq+NhM+uoSLcvkpT1sXoyFA="
)


def test_a_doubled_nonce_is_recognised_whoever_sends_it() -> None:
    for find in (None, lambda _: None):
        scram = exchange(find, "Wlu_53wyBoKSwCk2CxjX_UzrTk2fHmPV")
        assert scram.first(KCAT_FIRST).startswith(f"r={KCAT}Wlu_".encode())
        with pytest.raises(ScramError, match=r"librdkafka before 2\.6\.1"):
            scram.final(KCAT_FINAL)


def test_a_user_that_is_not_there_is_asked_like_any_other() -> None:
    first = [exchange(lambda _: None).first(FIRST) for _ in range(2)]
    assert first[0] == first[1], "the same salt each time"
    assert first[0].endswith(b",i=8192")
    scram = exchange(lambda _: None)
    scram.first(FIRST)
    with pytest.raises(ScramError):
        scram.final(FINAL)


def test_names_with_commas_and_equals() -> None:
    seen: list[str] = []
    exchange(seen.append).first(b"n,,n=a=2Cb=3Dc,r=x")
    assert seen == ["a,b=c"]


# -- by hand -----------------------------------------------------------------------------------------------------


def test_strangers_may_only_say_who_they_are(asker: Asker, server: ServerProcess) -> None:
    assert asker.ask(c.ApiVersionsRequest("x", "1")).error_code == 0
    told = asker.ask(s.SaslHandshakeRequest("GSSAPI"), 1)
    assert (told.error_code, tuple(told.mechanisms)) == (E.UNSUPPORTED_SASL_MECHANISM, MECHANISMS)
    asker.send(c.MetadataRequest(None))
    assert asker.is_closed()
    with Asker(server.address("kafka")) as other:
        assert other.ask(s.SaslAuthenticateRequest(b"\0alice\0pencil")).error_code == E.ILLEGAL_SASL_STATE
        assert other.is_closed()


@pytest.mark.parametrize("version", range(3))
def test_plain(asker: Asker, version: int) -> None:
    assert log_in(asker, "alice", "pencil", version).error_code == 0
    assert asker.ask(c.MetadataRequest([])).brokers


@pytest.mark.parametrize(
    "token",
    [b"", b"\0alice\0wrong", b"\0nobody\0pencil", b"root\0alice\0pencil", b"alice\0pencil", b"\0" * 3000, b"\0\0"],
)
def test_a_wrong_password_is_the_last_that_is_said(asker: Asker, token: bytes) -> None:
    asker.ask(s.SaslHandshakeRequest("PLAIN"), 1)
    told = asker.ask(s.SaslAuthenticateRequest(token))
    assert told.error_code == E.SASL_AUTHENTICATION_FAILED
    assert "pencil" not in told.error_message
    assert asker.is_closed()


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_a_client_that_doubles_its_nonce_hears_so(asker: Asker, server: ServerProcess, name: str) -> None:
    """librdkafka before 2.6.1, whose users took it for a wrong password."""
    asker.ask(s.SaslHandshakeRequest("SCRAM-SHA-256"), 1)
    asked = bytes(asker.ask(s.SaslAuthenticateRequest(f"n,,n={name},r={KCAT}".encode())).auth_bytes)
    nonce = asked.partition(b",")[0].removeprefix(b"r=")
    final = b"c=biws,r=" + KCAT.encode() + nonce + b",p=qax5E1YimuCxGe7bX9cxMq+NhM+uoSLcvkpT1sXoyFA="
    told = asker.ask(s.SaslAuthenticateRequest(final))
    assert told.error_code == E.SASL_AUTHENTICATION_FAILED
    assert "librdkafka before 2.6.1 sends it: upgrade the client" in told.error_message
    assert asker.is_closed()
    assert "the client's nonce is doubled" in server.errors()


def test_of_several_tokens_at_once_one_is_tried(asker: Asker) -> None:
    asker.ask(s.SaslHandshakeRequest("PLAIN"), 1)
    for password in (b"wrong", b"pencil"):
        asker.send(s.SaslAuthenticateRequest(b"\0alice\0" + password))
    assert asker.answer().error_code == E.SASL_AUTHENTICATION_FAILED
    with contextlib.suppress(EOFError, ConnectionError):
        assert asker.answer().error_code != 0
    assert asker.is_closed()


def test_who_is_known_is_no_stranger_any_more(asker: Asker) -> None:
    """Strangers may send little, and not for long; neither holds for who has said who it is."""
    assert log_in(asker, "alice", "pencil").error_code == 0
    began = time.monotonic()
    large = [c.MetadataRequestTopic(name="x" * 200) for _ in range(100)]
    until(lambda: asker.ask(c.MetadataRequest(large)).topics and time.monotonic() > began + 3)


def test_a_token_of_the_configuration_is_a_password_too(asker: Asker) -> None:
    assert log_in(asker, "root", "root's token").error_code == 0
    assert asker.ask(g.ListGroupsRequest()).error_code == 0


@pytest.mark.parametrize(("password", "works"), [(b"pencil", True), (b"wrong", False)])
def test_bare_tokens_of_old_clients(asker: Asker, password: bytes, works: bool) -> None:
    """After a handshake of version 0, tokens come without a header."""
    assert asker.ask(s.SaslHandshakeRequest("PLAIN"), 0).error_code == 0
    token = b"\0alice\0" + password
    asker.raw(len(token).to_bytes(4, "big") + token)
    if not works:
        assert asker.is_closed()
        return
    assert asker.read(4) == bytes(4), "an empty token says yes"
    assert asker.ask(c.MetadataRequest([])).brokers


# -- client libraries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "password", "mechanism"),
    [
        ("alice", "pencil", "PLAIN"),
        ("alice", "pencil", "SCRAM-SHA-256"),
        ("admin", "admin's", "SCRAM-SHA-512"),
        ("root", "root's token", "PLAIN"),
    ],
)
def test_librdkafka(address: str, name: str, password: str, mechanism: str) -> None:
    assert produce(address, "alice-rd", sasl(name, password, mechanism)) is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_a_wrong_password(address: str, mechanism: str) -> None:
    errors: list[str] = []
    settings = {**sasl("alice", "wrong", mechanism), "error_cb": lambda error: errors.append(error.name())}
    producer = Producer({"bootstrap.servers": address, **settings})
    ends: list[str | None] = []
    producer.produce("alice-rd", b"x", on_delivery=lambda error, _: ends.append(error.name() if error else None))
    until(lambda: (producer.poll(0.05), "_AUTHENTICATION" in errors)[1])
    producer.purge()
    assert producer.flush(WAIT_SECONDS) == 0
    assert ends == ["_PURGE_QUEUE"], "it is tried again, and was not stored"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_kafka_python(address: str, mechanism: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password="pencil",
    )
    assert producer.send("alice-kp", b"x").get(WAIT_SECONDS).offset >= 0
    producer.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_aiokafka(address: str, mechanism: str) -> None:
    async def run() -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="pencil",
        )
        await producer.start()
        sent = await producer.send_and_wait("alice-aio", b"x")
        await producer.stop()
        return int(sent.offset)

    assert asyncio.run(run()) >= 0


# -- what one may do ---------------------------------------------------------------------------------------------


def test_rules_hold_for_each_topic_of_a_request(asker: Asker) -> None:
    assert log_in(asker, "alice", "pencil").error_code == 0
    names = ["alice-mine", "others"]
    asked = [m.CreateTopicsRequestTopic(name, 1, 1) for name in names]
    codes = [each.error_code for each in asker.ask(m.CreateTopicsRequest(asked)).topics]
    assert codes[0] in (0, E.TOPIC_ALREADY_EXISTS)
    assert codes[1] == E.TOPIC_AUTHORIZATION_FAILED
    commits = [
        g.OffsetCommitRequestTopic(name, partitions=[g.OffsetCommitRequestPartition(0, 1, -1, "")]) for name in names
    ]
    told = asker.ask(g.OffsetCommitRequest("alice", topics=commits), 9).topics
    assert [each.partitions[0].error_code for each in told] == [0, E.TOPIC_AUTHORIZATION_FAILED]
    deleting = m.DeleteTopicsRequest([m.DeleteTopicsRequestTopic("alice-mine")])
    assert asker.ask(deleting).responses[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    resource = m.DescribeConfigsRequestResource(2, "others", None)
    told = asker.ask(m.DescribeConfigsRequest([resource])).results
    assert told[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    for resource in (m.DescribeConfigsRequestResource(4, "0"), m.DescribeConfigsRequestResource(4, "")):
        (told,) = asker.ask(m.DescribeConfigsRequest([resource])).results
        assert (told.error_code, told.configs) == (E.CLUSTER_AUTHORIZATION_FAILED, []), "of a node"
    change = m.IncrementalAlterConfigsRequestResource(
        4, "0", [m.IncrementalAlterConfigsRequestConfig("leader.replication.throttled.rate", 0, "1")]
    )
    assert asker.ask(m.IncrementalAlterConfigsRequest([change])).responses[0].error_code == (
        E.CLUSTER_AUTHORIZATION_FAILED
    )
    groups = [m.DescribeConfigsRequestResource(32, name) for name in ("alice", "others")]
    told = asker.ask(m.DescribeConfigsRequest(groups)).results
    assert [each.error_code for each in told] == [0, E.GROUP_AUTHORIZATION_FAILED]
    timeout = [m.IncrementalAlterConfigsRequestConfig("consumer.session.timeout.ms", 0, "50000")]
    change = m.IncrementalAlterConfigsRequestResource(32, "alice", timeout)
    told = asker.ask(m.IncrementalAlterConfigsRequest([change])).responses
    assert told[0].error_code == E.GROUP_AUTHORIZATION_FAILED, "who reads in a group may not alter it"
    assert asker.ask(m.ListConfigResourcesRequest([4]), 1).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    (folder,) = asker.ask(m.DescribeLogDirsRequest(None)).results
    assert folder.log_dir == "data", "where the node keeps it is nobody's business"
    told = asker.ask(c.DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert told.cluster_authorized_operations == 1 << 8, "describe"
    assert asker.ask(g.DeleteGroupsRequest(["alice"])).results[0].error_code == E.GROUP_AUTHORIZATION_FAILED
    assert asker.ask(s.DescribeAclsRequest(1)).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    assert asker.ask(s.DescribeUserScramCredentialsRequest(None)).error_code == E.CLUSTER_AUTHORIZATION_FAILED
    put = s.AlterUserScramCredentialsRequestUpsertion("alice2", 1, 4096, SALT, bytes(32))
    told = asker.ask(s.AlterUserScramCredentialsRequest([], [put])).results
    assert [each.error_code for each in told] == [E.CLUSTER_AUTHORIZATION_FAILED]


def test_users_and_lists_at_run_time(tmp_path: Path) -> None:
    """A user is made, may do nothing, is allowed something, still is after kill -9, and is sent away."""
    with start(tmp_path) as server:
        address = "{}:{}".format(*server.address("kafka"))
        admin = AdminClient({"bootstrap.servers": address, **sasl("admin", "admin's", "SCRAM-SHA-512")})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            made = UserScramCredentialUpsertion("bob", ScramCredentialInfo(mechanism, 8192), b"secret")
            assert admin.alter_user_scram_credentials([made])["bob"].result() is None
        found = admin.describe_user_scram_credentials(["bob"])["bob"].result()
        assert {(each.mechanism, each.iterations) for each in found.scram_credential_infos} == {
            (ScramMechanism.SCRAM_SHA_256, 8192),
            (ScramMechanism.SCRAM_SHA_512, 8192),
        }
        for mechanism in MECHANISMS:
            assert produce(address, "bobs", sasl("bob", "secret", mechanism)) == "TOPIC_AUTHORIZATION_FAILED"
        rules = [
            AclBinding(
                ResourceType.TOPIC,
                "bob",
                ResourcePatternType.PREFIXED,
                "User:bob",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in (AclOperation.WRITE, AclOperation.CREATE)
        ]
        for made in admin.create_acls(rules).values():
            assert made.result() is None
        assert produce(address, "bobs", sasl("bob", "secret", "SCRAM-SHA-512")) is None
        server.kill()
        server.restart()
        assert produce(address, "bobs", sasl("bob", "secret", "SCRAM-SHA-256")) is None
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, "User:bob", None, AclOperation.ANY, AclPermissionType.ANY
        )
        assert set(admin.describe_acls(everything).result()) == set(rules)
        matching = AclBindingFilter(
            ResourceType.TOPIC, "bobs", ResourcePatternType.MATCH, None, None, AclOperation.WRITE, AclPermissionType.ANY
        )
        shown = admin.describe_acls(matching).result()
        assert [each.principal for each in shown] == ["User:bob"]
        assert set(admin.delete_acls([everything])[everything].result()) == set(rules)
        assert produce(address, "bobs", sasl("bob", "secret", "SCRAM-SHA-256")) == "TOPIC_AUTHORIZATION_FAILED"
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            gone = UserScramCredentialDeletion("bob", mechanism)
            assert admin.alter_user_scram_credentials([gone])["bob"].result() is None
        with pytest.raises(KafkaException):
            admin.describe_user_scram_credentials(["bob"])["bob"].result()
        with Asker(server.address("kafka")) as asker:
            assert log_in(asker, "bob", "secret").error_code == E.SASL_AUTHENTICATION_FAILED


def test_lists_that_cannot_be_kept_are_refused(asker: Asker) -> None:
    assert log_in(asker, "admin", "admin's").error_code == 0
    good: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "x",
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    wrong = (
        {"permission_type": 1},
        {"host": "10.0.0.1"},
        {"principal": "x"},
        {"principal": "User:"},
        {"resource_type": 3, "operation": 4},
        {"resource_type": 3, "resource_name": "g*"},
        {"resource_type": 5},
        {"resource_type": 6},
        {"resource_type": 100, "resource_name": ""},
        {"resource_type": 4, "resource_name": "other", "operation": 9},
        {"operation": 12},
        {"operation": 9},
        {"resource_pattern_type": 2},
        {"resource_type": 4, "resource_name": "kafka-cluster", "operation": 8},
    )
    asked = [s.CreateAclsRequestCreation(**{**good, **each}) for each in wrong]
    told = asker.ask(s.CreateAclsRequest(asked)).results
    assert [each.error_code for each in told] == [E.INVALID_REQUEST] * len(wrong)
    assert all(each.error_message for each in told)
    before = asker.ask(s.DescribeAclsRequest(1, None, 1, None, None, 1, 1)).resources
    assert {acl.principal for each in before for acl in each.acls} == {"User:root", "User:admin", "User:alice"}
    assert ("alice", 4) in {(each.resource_name, each.pattern_type) for each in before}


def test_lists_of_groups_ids_and_keys_and_denials(asker: Asker, server: ServerProcess) -> None:
    assert log_in(asker, "admin", "admin's").error_code == 0
    lines = [
        (3, "shared", 4, "User:alice", "*", 3, 3),
        (3, "shared-not", 3, "User:alice", "*", 2, 2),
        (5, "alices", 3, "User:alice", "*", 4, 3),
        (100, "alice:", 4, "User:alice", "*", 4, 3),
        (2, "alice-denied", 3, "User:*", "*", 4, 2),
        (3, "altered", 3, "User:alice", "*", 7, 3),
    ]
    own = [m.IncrementalAlterConfigsRequestConfig("consumer.session.timeout.ms", 0, "50000")]
    setting = m.IncrementalAlterConfigsRequest([m.IncrementalAlterConfigsRequestResource(32, "altered", own)])
    with Asker(server.address("kafka")) as alice:
        assert log_in(alice, "alice", "pencil").error_code == 0

        def tried() -> list[int]:
            return [
                alice.ask(g.HeartbeatRequest("shared-too", 0, "m")).error_code,
                alice.ask(g.HeartbeatRequest("shared-not", 0, "m")).error_code,
                alice.ask(t.InitProducerIdRequest("alices", 60_000), 4).error_code,
                alice.ask(setting).responses[0].error_code,
            ]

        no_group, no_id = E.GROUP_AUTHORIZATION_FAILED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert tried() == [no_group, no_group, no_id, no_group]
        told = asker.ask(s.CreateAclsRequest([s.CreateAclsRequestCreation(*line) for line in lines])).results
        assert [each.error_code for each in told] == [0] * len(lines)
        assert tried() == [E.UNKNOWN_MEMBER_ID, no_group, E.NONE, E.NONE]
        everything = s.DescribeAclsRequest(1, None, 1, None, None, 1, 1)
        shown = [
            (each.resource_type, each.resource_name, each.pattern_type, *msgspec.structs.astuple(acl))
            for each in asker.ask(everything).resources
            for acl in each.acls
        ]
        assert {line for line in lines if line in shown} == {line for line in lines if line[0] != 100}
        (keys,) = asker.ask(s.DescribeAclsRequest(100, None, 1, "User:alice", None, 1, 1)).resources
        assert (keys.resource_name, keys.pattern_type) == ("alice:", 4)
        filters = [s.AclFilter(kind, None, 1, None, None, 1, 1) for kind in (1, 100)]
        gone = asker.ask(s.DeleteAclsRequest(filters)).filter_results
        assert [len(each.matching_acls) for each in gone] == [5, 1]
        assert tried() == [no_group, no_group, no_id, no_group]


def test_users_of_the_configuration_and_bad_ones(asker: Asker) -> None:
    assert log_in(asker, "admin", "admin's").error_code == 0
    shown = asker.ask(s.DescribeUserScramCredentialsRequest(None)).results
    assert [(each.user, [(i.mechanism, i.iterations) for i in each.credential_infos]) for each in shown] == [
        ("admin", [(2, 4096)]),
        ("alice", [(1, 4096)]),
    ]
    changes = [
        s.AlterUserScramCredentialsRequestUpsertion("alice", 1, 4096, SALT, bytes(32)),
        s.AlterUserScramCredentialsRequestUpsertion("weak", 1, 1, SALT, bytes(32)),
        s.AlterUserScramCredentialsRequestUpsertion("odd", 9, 4096, SALT, bytes(32)),
        s.AlterUserScramCredentialsRequestUpsertion("anonymous", 1, 4096, SALT, bytes(32)),
    ]
    gone = [s.AlterUserScramCredentialsRequestDeletion("nobody", 1)]
    told = asker.ask(s.AlterUserScramCredentialsRequest(gone, changes)).results
    assert {each.user: each.error_code for each in told} == {
        "nobody": E.RESOURCE_NOT_FOUND,
        "alice": E.UNACCEPTABLE_CREDENTIAL,
        "weak": E.UNACCEPTABLE_CREDENTIAL,
        "odd": E.UNSUPPORTED_SASL_MECHANISM,
        "anonymous": E.UNACCEPTABLE_CREDENTIAL,
    }


def test_without_rules_there_are_no_lists(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Asker(server.address("kafka")) as asker:
        assert asker.ask(s.DescribeAclsRequest(1)).error_code == E.SECURITY_DISABLED
        asked = s.CreateAclsRequest([s.CreateAclsRequestCreation(2, "x", 3, "User:x", "*", 3, 3)])
        assert [each.error_code for each in asker.ask(asked).results] == [E.SECURITY_DISABLED]
        assert asker.ask(s.DeleteAclsRequest([s.AclFilter(1)])).filter_results[0].error_code == (E.SECURITY_DISABLED)


# -- saying it again (KIP-368) -------------------------------------------------------------------------------------


def secure_door() -> tuple[Door, Talk]:
    door = Door(tokens=True, reauthentication_ms=60_000)
    for name in ("alice", "bob"):
        salted = salt_password(Hash.SHA_256, b"pencil", b"7 bytes", 4096)
        door.node.run(door.services.users.put(name, Hash.SHA_256, b"7 bytes", 4096, salted))
    return door, Talk("anonymous")


def say(door: Door, talk: Talk, name: str) -> Any:
    assert door.ask(s.SaslHandshakeRequest("PLAIN"), 1, talk=talk).error_code == 0
    return door.ask(s.SaslAuthenticateRequest(f"\0{name}\0pencil".encode()), 2, talk=talk)


def test_who_does_not_say_it_again_in_time_is_closed_upon() -> None:
    door, talk = secure_door()
    assert say(door, talk, "alice").session_lifetime_ms == 60_000
    door.node.clock.advance(59_000)
    assert door.ask(c.MetadataRequest([]), talk=talk) is not None
    assert say(door, talk, "alice").error_code == 0
    door.node.clock.advance(59_000)
    assert door.ask(c.MetadataRequest([]), talk=talk) is not None
    door.node.clock.advance(2_000)
    assert door.ask(c.ApiVersionsRequest("x", "y"), talk=talk) is not None
    assert not talk.is_closing
    assert door.ask(c.MetadataRequest([]), talk=talk) is None
    assert talk.is_closing


def test_a_connection_stays_the_same_users() -> None:
    door, talk = secure_door()
    assert say(door, talk, "alice").error_code == 0
    assert say(door, talk, "bob").error_code == E.SASL_AUTHENTICATION_FAILED
    assert (talk.principal, talk.is_closing) == ("alice", True)


def test_scram_is_offered_only_where_somebody_could_pass_it() -> None:
    door = Door(tokens=True)
    told = door.ask(s.SaslHandshakeRequest("SCRAM-SHA-256"), 1, talk=Talk())
    assert (told.error_code, told.mechanisms) == (E.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
    assert tuple(secure_door()[0].ask(s.SaslHandshakeRequest("PLAIN"), 1, talk=Talk()).mechanisms) == MECHANISMS


@pytest.mark.parametrize("idempotent", [False, True])
def test_who_may_only_read_a_topic_hears_that_it_may_not_write_it(idempotent: bool) -> None:
    door = Door(None, Rule("alice", [Operation.READ, Operation.DESCRIBE], topic="read-only"))
    door.node.create("read-only")
    begun = door.ask(t.InitProducerIdRequest(transactional_id=None))
    assert begun.error_code == 0
    producer = (begun.producer_id, begun.producer_epoch, 0) if idempotent else (-1, -1, -1)
    told = door.ask(produce_of(("read-only", 0, batch_of(b"x", producer=producer))), 9)
    assert told.responses[0].partition_responses[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
