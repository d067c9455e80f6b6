"""Health of every etcd member, each queried separately."""

import asyncio
import ssl
from typing import Final

import h11
import msgspec

from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.gateway import Gateway
from braidlog.server.etcd.http_connection import Connection, parse_endpoint
from braidlog.server.etcd.messages import EtcdMember, HealthAnswer

ASK_SECONDS_MAX: Final = 5.0


class MemberHealth(msgspec.Struct, frozen=True):
    """One member. `trouble` is empty while it is healthy."""

    number: int
    name: str
    url: str
    trouble: str = ""


async def ask_members(config: ClusterConfig) -> list[MemberHealth]:
    """Query all members. Raises `EtcdError` if none answers."""
    tls = config.tls()
    gateway = Gateway(config.gateway(), tls)
    try:
        members = await gateway.members()
    finally:
        gateway.close()
    return list(await asyncio.gather(*(_ask(each, tls) for each in members)))


async def _ask(member: EtcdMember, tls: ssl.SSLContext) -> MemberHealth:
    url = next(iter(member.clientURLs), "")
    trouble = "has not started yet"
    if url:
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                trouble = await _trouble(url, tls)
        except (OSError, TimeoutError, h11.ProtocolError, msgspec.MsgspecError) as error:
            trouble = f"does not answer: {error}" if str(error) else "does not answer"
    return MemberHealth(member.ID, member.name, url, trouble)


async def _trouble(url: str, tls: ssl.SSLContext) -> str:
    connection = await Connection.open(parse_endpoint(url), tls)
    try:
        await connection.send("/health", b"", "")
        said = msgspec.json.decode((await connection.receive()).body, type=HealthAnswer)
    finally:
        connection.close()
    return "" if said.health == "true" else f"is not healthy: {said.reason or 'no leader, or an alarm'}"
