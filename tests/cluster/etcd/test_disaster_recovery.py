"""What the metadata is after a recovery: above all that any folder has seen, and led by the copy with the latest record."""

import pytest
from tests.cluster.topics import placed

from braidlog.cluster.etcd.disaster_recovery import IDS_PER_ENTRY_MAX, Copy, Seen, recovered
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image import Image
from braidlog.model.errors import BrokerError
from braidlog.model.settings import TopicSettings
from braidlog.replication.control.incarnation import Life
from braidlog.storage.folder.data_folder import TopicMeta


def topic(name: str, topic_id: str, partitions: int = 1) -> TopicMeta:
    return TopicMeta(
        name=name, topic_id=topic_id, partitions=partitions, settings=TopicSettings(), created_ms=1, by_metadata=True
    )


def seen(number: int, *copies: Copy | None, topics: tuple[TopicMeta, ...] = (topic("t", "01"),), ids: int = 0) -> Seen:
    """A folder with these copies of the first topic."""
    held = {(topics[0].topic_id, at): copy for at, copy in enumerate(copies) if copy is not None}
    by_id = {each.topic_id: each for each in topics}
    return Seen(str(number), Position("c", 9, "d"), f"f{number}", number, by_id, held, ids)


def old_image() -> Image:
    image = Image()
    for number in (1, 2, 3):
        life = Life(boot_id="b", folder_id=f"f{number}")
        image.apply(e.RegisterNode(node=number, incarnation=number, life=life, name=str(number), rack="r"))
    image.apply(placed((1, 2, 3)))
    return image


def after(*folders: Seen, lost: tuple[int, ...] = (), entries: int = 5) -> Image:
    return recovered(old_image(), folders, entries, now_ms=77, lost=lost)


@pytest.mark.parametrize(
    ("copies", "first"),
    [
        ((Copy(4, 10, 4), Copy(5, 8, 5), Copy(4, 12, 4)), 2),
        ((Copy(5, 7, 5), Copy(5, 8, 5), Copy(5, 7, 9)), 2),
        ((Copy(5, 8, 5), Copy(5, 8, 5), None), 1),
        ((None, None, Copy(-1, 0, 1)), 3),
    ],
)
def test_the_copy_with_the_latest_record_leads(copies: tuple[Copy | None, ...], first: int) -> None:
    image = after(*(seen(number, copy) for number, copy in enumerate(copies, 1)))
    found = image.assignment("t", 0)
    assert (found.replicas, found.in_sync, found.leader, found.torn) == ((1, 2, 3), (first,), None, ())
    assert found.leader_epoch > max(copy.latest_epoch for copy in copies if copy)
    assert all(member.is_fenced for member in image.cluster.members.values())
    life = Life(boot_id="another", folder_id=f"f{first}", remembers=first, stopped_cleanly=True)
    image.apply(e.RegisterNode(node=first, incarnation=20, life=life))
    assert image.assignment("t", 0).in_sync == (first,), "its folder is known again"


def test_a_copy_that_was_placed_elsewhere_since_counts() -> None:
    image = after(seen(1, Copy(1, 3, 1)), seen(2), seen(3), seen(4, Copy(6, 30, 7)))
    found = image.assignment("t", 0)
    assert (found.replicas, found.in_sync, found.leader_epoch) == ((1, 2, 3, 4), (4,), 8)
    assert sorted(image.cluster.members) == ["1", "2", "3", "4"]


def test_where_no_copy_is_whole_nobody_is_in_sync() -> None:
    found = after(seen(1), seen(2), seen(3)).assignment("t", 0)
    assert (found.in_sync, found.torn, found.leader) == ((), (1, 2, 3), None)


def test_a_node_is_left_out_only_by_name() -> None:
    folders = seen(1, Copy(1, 3, 1)), seen(3, Copy(1, 4, 1))
    with pytest.raises(BrokerError, match=r"node 2 belongs to this cluster, .* name it with --lost"):
        after(*folders)
    image = after(*folders, lost=(2,))
    assert image.assignment("t", 0).replicas == (1, 3)
    assert sorted(image.cluster.members) == ["1", "3"]


def test_topics_are_found_in_the_folders() -> None:
    late, t = topic("late", "02", 2), topic("t", "01", 2)
    folders = [seen(number, Copy(1, 5, 1), Copy(2, 6, 2), topics=(t, late)) for number in (1, 2, 3)]
    image = after(*folders)
    assert [each.partitions for each in (image.topics["t"], image.topics["late"])] == [2, 2]
    assert image.assignment("t", 1).in_sync == (1,)
    assert image.topics["late"].min_in_sync == 2
    assert image.made["02"] == {"1": 2, "2": 2, "3": 2}
    gone = after(*(seen(number, topics=(late,)) for number in (1, 2, 3)))
    assert (sorted(gone.topics), gone.deleted) == (["late"], {"01": 77}), "deleted since: no folder has it"


def test_no_producer_id_is_given_twice() -> None:
    before = old_image().ids_taken
    assert after(seen(1), seen(2), seen(3), entries=5).ids_taken == before + 5 * IDS_PER_ENTRY_MAX
    assert after(seen(1), seen(2, ids=90_000), seen(3), entries=1).ids_taken == 90_001 + IDS_PER_ENTRY_MAX
