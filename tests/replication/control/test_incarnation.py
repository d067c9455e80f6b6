"""Who comes back whole."""

import pytest

from braidlog.replication.control.incarnation import Life, Registration, is_whole, last_known_incarnation

BEFORE = Registration(7, Life(boot_id="b1", folder_id="f1"))
SAME = Life(boot_id="b1", folder_id="f1", remembers=7)
POWER_LOST = Life(boot_id="b2", folder_id="f1", remembers=7)
STOPPED = Life(boot_id="b2", folder_id="f1", remembers=7, stopped_cleanly=True)
COPY = Life(boot_id="b1", folder_id="f1", remembers=5, stopped_cleanly=True)
NEW_DISK = Life(boot_id="b1", folder_id="f2", remembers=0)


@pytest.mark.parametrize(
    ("life", "flush_on_ack", "expected"),
    [
        (SAME, False, True),
        (SAME, True, True),
        (POWER_LOST, True, True),
        (POWER_LOST, False, False),
        (STOPPED, False, True),
        (COPY, True, False),
        (NEW_DISK, True, False),
    ],
)
def test_whole_is_who_can_have_lost_nothing(life: Life, flush_on_ack: bool, expected: bool) -> None:
    assert is_whole(BEFORE, life, flush_on_ack=flush_on_ack, is_damaged=False) is expected
    assert not is_whole(BEFORE, life, flush_on_ack=flush_on_ack, is_damaged=True)
    assert not is_whole(None, life, flush_on_ack=flush_on_ack, is_damaged=False)


def test_a_node_that_died_before_it_heard_of_its_registration_knows_it_again() -> None:
    asked = Registration(9, Life(boot_id="b1", folder_id="f1", remembers=7, start_id="s9"))
    assert last_known_incarnation(asked, known=7, start_ids=("s8", "s9")) == 9
    assert last_known_incarnation(asked, known=7, start_ids=()) == 7, "somebody else asked: this folder is a copy"
    assert last_known_incarnation(None, known=0, start_ids=("s1",)) == 0
