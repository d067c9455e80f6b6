"""Keys under images: whatever is changed, each image shows what was there when it was taken, and the keys what is there now."""

from random import Random
from typing import Any

import pytest
from tests.kv.crashing import check_figures, new_disk, open_store, plain

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.copy_on_write import Overlay, merged, released
from braidlog.kv.engine.keyspace import Image
from braidlog.kv.wal import snapshot as snapshots


def shown(image: Image) -> bytes:
    """All that an image shows, whatever order its keys have."""
    keyspace = dict(sorted(image.data.items()))
    return b"".join(snapshots.slices(Image(keyspace, dict(image.deadlines))))


@pytest.mark.parametrize("seed", range(4))
def test_images_stand_still_whatever_happens(seed: int) -> None:
    """A store with images taken and given back at random, beside one that has none: they hold the same."""
    random = Random(seed)
    store, twin = open_store(new_disk()), open_store(new_disk())
    images: list[tuple[Image, bytes, int]] = []
    layers = 0
    for now_ms in range(400):
        key = b"%d" % random.randrange(12)
        operation: o.Operation[Any] = random.choice([
            o.Set(b"s" + key, b"v%d" % now_ms, random.choice([0, 0, 1])),
            o.Increment(b"c" + key, now_ms),
            o.Push(b"l" + key, random.choice(list(o.End)), (b"x%d" % now_ms,)),
            o.Pop(b"l" + key, random.choice(list(o.End))),
            o.HashSet(b"h" + key, ((key, b"%d" % now_ms),)),
            o.Delete(random.choice([b"s", b"c", b"l", b"h"]) + key),
            o.Expire(b"s" + key, random.randrange(2)),
        ])  # fmt: skip
        results = []
        for each in (store, twin):
            try:
                results.append(each.execute(operation, 10 * now_ms))
            except Exception as error:  # noqa: BLE001 - the same refusal of both
                results.append(str(error))
            each.expire(10 * now_ms, 100)
        assert results[0] == results[1]
        match random.randrange(8):
            case 0 if len(images) < 3:
                image = store.keyspace.take_image()
                images.append((image, shown(image), len(image.data)))
            case 1 if images:
                image, _, _ = images.pop(random.randrange(len(images)))
                store.keyspace.give_back(image)
            case 2 | 3:
                store.keyspace.settle(random.randrange(1, 5))
        layers = max(layers, layers_of(store.keyspace.data))
        assert plain(store) == plain(twin)
        assert len(store.keyspace) == len(twin.keyspace)
        for image, before, count in images:
            assert shown(image) == before
            assert len(image.data) == count
    check_figures(store)
    assert layers > 2, "images one above the other"
    for image, _, _ in images:
        store.keyspace.give_back(image)
    while store.keyspace.settle(3):
        pass
    assert type(store.keyspace.data) is type(store.keyspace.deadlines) is dict, "nothing is left of the images"
    assert plain(store) == plain(twin)
    check_figures(store)


def layers_of(data: object) -> int:
    found = 0
    while isinstance(data, Overlay):
        found += 1
        data = data.base
    return found


def test_taking_an_image_touches_no_key() -> None:
    store = open_store(new_disk())
    store.execute(o.Set(b"a", b"1"), 0)
    below = store.keyspace.data
    image = store.keyspace.take_image()
    assert image.data is below


def test_keys_are_settled_a_few_at_a_time() -> None:
    base = {b"%d" % number: number + 1 for number in range(10)}
    top: Overlay[int] = Overlay(base)
    for number in range(5, 15):
        top[b"%d" % number] = -number
    del top[b"0"]
    assert base[b"5"] == 6
    released(top, base)
    rounds = 1
    while merged(top, 2)[1]:
        rounds += 1
    assert rounds == 6
    assert merged(top, 2) == (base, False)
    assert base == dict(top)
    assert (base.get(b"0"), base[b"14"]) == (None, -14)


def test_an_overlay_is_a_mapping() -> None:
    top: Overlay[int] = Overlay({b"a": 1, b"b": 2})
    with pytest.raises(KeyError):
        top[b"c"]
    with pytest.raises(KeyError):
        del top[b"c"]
    del top[b"a"]
    with pytest.raises(KeyError):
        del top[b"a"]
    assert (top.get(b"a"), top.get(b"a", 7), top.pop(b"a", 8), len(top), list(top)) == (None, 7, 8, 1, [b"b"])
    top[b"a"] = 3
    assert (top[b"a"], len(top), dict(top)) == (3, 2, {b"a": 3, b"b": 2})
    with pytest.raises(AssertionError, match="stands still"):
        top.merge(1)
    with pytest.raises(AssertionError, match="twice"):
        released(top, {})
