"""What each adapter is made with: services that a node has, under the names and types it has them."""

from typing import get_type_hints

import pytest

from braidlog.broker.services import Services
from braidlog.server.adapters import adapter_class
from braidlog.wire.dialect import dialects


@pytest.mark.parametrize("dialect", sorted(dialects()))
def test_what_an_adapter_uses_is_what_a_node_has(dialect: str) -> None:
    used = get_type_hints(adapter_class(dialect).uses)
    assert used == {name: kind for name, kind in get_type_hints(Services).items() if name in used}


def test_no_adapter_is_handed_everything() -> None:
    everything = set(get_type_hints(Services))
    for dialect in dialects():
        assert set(get_type_hints(adapter_class(dialect).uses)) < everything
