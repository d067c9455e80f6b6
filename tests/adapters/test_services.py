"""What each adapter is made with: services that a node has, under the names and types it has them."""

from typing import get_type_hints

import pytest

from braidlog.broker.services import Services
from braidlog.server.compose import adapters


@pytest.mark.parametrize("dialect", sorted(adapters()))
def test_what_an_adapter_uses_is_what_a_node_has(dialect: str) -> None:
    used = get_type_hints(adapters()[dialect].uses)
    assert used == {name: kind for name, kind in get_type_hints(Services).items() if name in used}


def test_no_adapter_is_handed_everything() -> None:
    everything = set(get_type_hints(Services))
    for kind in adapters().values():
        assert set(get_type_hints(kind.uses)) < everything
