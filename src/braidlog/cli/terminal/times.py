"""Times as options and arguments of commands."""

from typing import Any

import click

from braidlog.model.clock import SystemClock
from braidlog.model.time_parsing import parse_time


class MomentType(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer clicks only
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        if not isinstance(value, str):
            return value
        try:
            return parse_time(value, SystemClock().now_ms())
        except ValueError as error:
            self.fail(str(error), param, ctx)


MOMENT = MomentType()
