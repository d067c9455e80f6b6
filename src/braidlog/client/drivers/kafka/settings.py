"""A topic's settings, as Kafka's brokers tell and change them.

Knows: the numbers that stand for topics, operations and origins. Refuses to know: which settings there are; a broker's names and
values pass as they are.
Invariant: settings are changed one by one, so that what is not named stays as it is.
"""

from collections.abc import Mapping
from typing import Final

from braidlog.client.drivers.contract import Setting
from braidlog.client.drivers.kafka.routing import Router, only
from braidlog.wire.kafka.messages import topics as m

TOPIC: Final = 2
"""The kind of thing that has settings."""
SET, DELETE = 0, 1
"""What is done with one."""
_OF_THE_TOPIC: Final = 1
"""Where a value comes from: all others are defaults, of the cluster, of a broker or of the program."""


class SettingsDriver(Router):
    """What a driver asks brokers."""

    async def settings_of(self, topic: str) -> list[Setting]:
        asked = m.DescribeConfigsRequestResource(TOPIC, topic, None)
        message = m.DescribeConfigsRequest([asked], include_documentation=True)
        answer: m.DescribeConfigsResponse = await self.ask(message)
        told = only(answer.results, "DescribeConfigs")
        self.check_code(told.error_code, told.error_message)
        return [
            Setting(
                each.name,
                None if each.is_sensitive else each.value,
                each.config_source != _OF_THE_TOPIC,
                each.read_only,
                each.documentation or "",
            )
            for each in told.configs
        ]

    async def change_settings(self, topic: str, changes: Mapping[str, str | None]) -> None:
        configs = [
            m.IncrementalAlterConfigsRequestConfig(name, DELETE if value is None else SET, value)
            for name, value in changes.items()
        ]
        message = m.IncrementalAlterConfigsRequest([m.IncrementalAlterConfigsRequestResource(TOPIC, topic, configs)])
        answer: m.IncrementalAlterConfigsResponse = await self.ask_controller(message)
        told = only(answer.responses, "IncrementalAlterConfigs")
        self.check_code(told.error_code, told.error_message)
