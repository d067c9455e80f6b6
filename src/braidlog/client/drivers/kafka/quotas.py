"""Quotas by Kafka's requests: maps entities and rates to Kafka's names.

Does not handle: which rates an entity may have.
"""

from typing import Any, Final

from braidlog.client.drivers.kafka.routing import Router, only
from braidlog.client.drivers.quotas import EVERYBODY, Quota
from braidlog.wire.kafka.messages import security as s

ENTITIES: Final = {"user": "user", "client_id": "client-id", "address": "ip"}
RATES: Final = {
    "append_bytes_per_second": "producer_byte_rate",
    "fetch_bytes_per_second": "consumer_byte_rate",
    "request_percent": "request_percentage",
    "connections_per_second": "connection_creation_rate",
}


class QuotasDriver(Router):
    """Lists and changes quotas by requests to the controller."""

    async def list_quotas(self) -> list[Quota]:
        answer: s.DescribeClientQuotasResponse = await self.ask_controller(s.DescribeClientQuotasRequest())
        self.check_code(answer.error_code, answer.error_message)
        return sorted(map(_quota, answer.entries or []), key=lambda each: [name or "" for name in each.whose])

    async def set_quota(self, quota: Quota) -> None:
        rates = {kafka: getattr(quota, ours) for ours, kafka in RATES.items()}
        await self._alter_quota(
            quota, [s.AlterClientQuotasRequestOp(name, rate) for name, rate in rates.items() if rate is not None]
        )

    async def remove_quota(self, quota: Quota) -> None:
        of_address = RATES["connections_per_second"]
        named = [name for name in RATES.values() if (name == of_address) is (quota.address is not None)]
        await self._alter_quota(quota, [s.AlterClientQuotasRequestOp(name, remove=True) for name in named])

    async def _alter_quota(self, quota: Quota, ops: list[s.AlterClientQuotasRequestOp]) -> None:
        named = ((kafka, getattr(quota, ours)) for ours, kafka in ENTITIES.items())
        entity = [s.QuotaEntity(kind, None if name == EVERYBODY else name) for kind, name in named if name is not None]
        answer: s.AlterClientQuotasResponse = await self.ask_controller(
            s.AlterClientQuotasRequest([s.AlterClientQuotasRequestEntry(entity, ops)])
        )
        result = only(answer.entries, "AlterClientQuotas")
        self.check_code(result.error_code, result.error_message)


def _quota(entry: s.DescribeClientQuotasResponseEntry) -> Quota:
    names = {each.entity_type: each.entity_name or EVERYBODY for each in entry.entity}
    rates = {value.key: value.value for value in entry.values}
    fields: dict[str, Any] = {ours: names.get(kafka) for ours, kafka in ENTITIES.items()}
    for ours, kafka in RATES.items():
        rate = rates.get(kafka)
        fields[ours] = rate if rate is None or ours == "request_percent" else int(rate)
    return Quota(**fields)
