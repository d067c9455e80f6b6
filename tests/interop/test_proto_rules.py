"""A second opinion on Protobuf's rules: Apicurio Registry's judges the cases of ours (`make interop`).

Its rules are another school's: it guards names, exact types and reservations of fields, as those need who also write JSON or
generate code; ours are Confluent's, and ask what the bytes allow. Where the two differ stands here, one by one, with the reason;
where neither is named they agree. Of JSON Schema a validator judges the cases
(`tests/registry/json_schema/test_json_compatibility.py`).
"""

import subprocess
from pathlib import Path

import pytest
from tests.debian import Missing, have
from tests.interop.kafka.clients import alone
from tests.interop.kafka.servers import IS_FULL, run_quietly
from tests.registry.protobuf.test_schema import NOT_READ, READ, message

JUDGE = Path(__file__).with_name("java_schemas")
BUILD_SECONDS_MAX = 1_200
JUDGE_SECONDS_MAX = 300

STRICTER = {
    (
        message(""),
        message("int32 a = 1;"),
    ): "a number that went must be reserved; the bytes are passed over all the same",
    (message("int32 renamed = 1;"), message("int32 a = 1;")): "a name is no part of the bytes",
    (message("int64 a = 1;"), message("int32 a = 1;")): "both are varints: protobuf.dev calls them compatible",
    (message("bytes a = 1;"), message("string a = 1;")): "the same bytes, as long as they are UTF-8",
    (message("int32 a = 1;"), message("E a = 1;", "enum E { Z = 0; }")): "an enum is a varint",
    (message("repeated string a = 1;"), message("string a = 1;")): "one string is a list of one",
}
"""Pairs that we read and Apicurio refuses."""
NOT_LOOKED_AT = {
    (message(""), message("", "message N {}")): "it compares messages that both have",
    (
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("int32 a = 1; int32 b = 2;"),
    ): "it knows no oneofs: of two fields that were set, one is lost",
    (
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; } int32 b = 2;"),
    ): "the same",
    ("message M { required int32 a = 1; }", "message M {}"): "what was written before lacks it, and is not parsed",
}
"""Pairs that we refuse and Apicurio takes."""


def judged(pairs: list[tuple[str, str]]) -> list[str]:
    try:
        have("java", "openjdk-17-jre-headless")
        have("mvn", "maven")
    except Missing as reason:
        pytest.skip(str(reason))
    jars = JUDGE / "target" / "lib"
    with alone("java-schemas"):
        if not any(jars.glob("*.jar")):
            run_quietly(["mvn", "-q", "-B", "-f", str(JUDGE / "pom.xml"), "package"], BUILD_SECONDS_MAX)
    asked = "".join(f"{new}\t{old}\n" for new, old in pairs)
    command = ["java", "-cp", f"{jars}/*", str(JUDGE / "ProtoJudge.java")]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=JUDGE_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split("\n")[: len(pairs)]


@pytest.mark.skipif(not IS_FULL, reason="jars from Maven Central: make interop")
def test_apicurio_says_the_same_but_where_its_rules_are_others() -> None:
    read, refused = READ, [(new, old) for new, old, _ in NOT_READ]
    verdicts = dict(zip([*read, *refused], judged([*read, *refused]), strict=True))
    assert {pair for pair in read if verdicts[pair]} == set(STRICTER)
    assert {pair for pair in refused if not verdicts[pair]} == set(NOT_LOOKED_AT)
    assert sum(bool(verdicts[pair]) for pair in refused) > len(refused) // 2, "it judges at all"
