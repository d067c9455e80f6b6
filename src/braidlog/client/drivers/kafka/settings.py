"""Topic settings by Kafka's requests.

Maps the numbers of resources, operations and sources; setting names and values pass unchanged. Does not handle: which
settings exist. Settings are changed incrementally, so unnamed settings keep their values.
"""

from collections.abc import Mapping
from typing import Final

from braidlog.client.drivers.contract import Setting
from braidlog.client.drivers.kafka.routing import Router, only
from braidlog.wire.kafka.messages import topics as m

TOPIC: Final = 2
"""The resource type of a topic."""
SET, DELETE = 0, 1
"""The operations on one setting."""
_OF_THE_TOPIC: Final = 1
"""The source of a value set on the topic; all others are defaults of the cluster, of a broker or of the program."""


class SettingsDriver(Router):
    """Reads and changes topic settings by requests to brokers."""

    async def settings_of(self, topic: str) -> list[Setting]:
        asked = m.DescribeConfigsRequestResource(TOPIC, topic, None)
        message = m.DescribeConfigsRequest([asked], include_documentation=True)
        answer: m.DescribeConfigsResponse = await self.ask(message)
        described = only(answer.results, "DescribeConfigs")
        self.check_code(described.error_code, described.error_message)
        return [
            Setting(
                config.name,
                None if config.is_sensitive else config.value,
                config.config_source != _OF_THE_TOPIC,
                config.read_only,
                config.documentation or "",
            )
            for config in described.configs
        ]

    async def change_settings(self, topic: str, changes: Mapping[str, str | None]) -> None:
        configs = [
            m.IncrementalAlterConfigsRequestConfig(name, DELETE if value is None else SET, value)
            for name, value in changes.items()
        ]
        message = m.IncrementalAlterConfigsRequest([m.IncrementalAlterConfigsRequestResource(TOPIC, topic, configs)])
        answer: m.IncrementalAlterConfigsResponse = await self.ask_controller(message)
        result = only(answer.responses, "IncrementalAlterConfigs")
        self.check_code(result.error_code, result.error_message)
