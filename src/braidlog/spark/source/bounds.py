"""Resolves which partitions a query reads, and where it begins and ends.

Offsets by partition must name all partitions of the query and no others: a query never begins at an unintended
offset. Does not handle: requests to a log.
"""

from collections.abc import Iterable, Mapping

from braidlog.spark.options import OptionError
from braidlog.spark.source.logs import Log
from braidlog.spark.source.options import Bound, Query, Selection
from braidlog.spark.source.positions import EARLIEST, LATEST, Offsets, Place, shown


def find_places(log: Log, selection: Selection) -> list[Place]:
    """Return the selected partitions; a named topic or partition that does not exist is an error."""
    named = topics_of(selection)
    counts = log.topics(named)
    missing = [name for name in named or () if name not in counts]
    if missing:
        raise OptionError("subscribe" if selection.topics else "assign", ", ".join(missing), "there is no such topic")
    places = places_of(selection, counts)
    if gone := set(selection.places) - set(places):
        raise OptionError("assign", shown(gone), "there is no such partition")
    return places


def topics_of(selection: Selection) -> tuple[str, ...] | None:
    """Return the named topics; None if a pattern selects among all."""
    if selection.pattern is not None:
        return None
    return selection.topics or tuple(dict.fromkeys(topic for topic, _ in selection.places))


def places_of(selection: Selection, counts: Mapping[str, int]) -> list[Place]:
    """Return the selected partitions of topics with these partition counts."""
    every = {(topic, number) for topic, count in counts.items() if selection.has(topic) for number in range(count)}
    return sorted(every & set(selection.places) if selection.places else every)


def starts(log: Log, bound: Bound, places: Iterable[Place], timeless: str) -> Offsets:
    """Return the start offset of each partition."""
    places = list(places)
    if bound.time_ms is not None or bound.times_ms is not None:
        return _timed_starts(log, bound, places, timeless)
    return _literal(log, bound, places, log.latest(places), "begins")


def ends(log: Log, bound: Bound, places: Iterable[Place]) -> Offsets:
    """Return the end offset of each partition: the end of the log if no record is at or after a time."""
    places = list(places)
    latest = log.latest(places)
    if bound.time_ms is not None or bound.times_ms is not None:
        offsets = log.at_times(_times(bound, places))
        return {
            place: latest[place] if (at := offsets.get(place)) is None else min(at, latest[place]) for place in places
        }
    return _literal(log, bound, places, latest, "ends")


def within(log: Log, begin: Offsets, end: Offsets, query: Query) -> tuple[Offsets, Offsets]:
    """Apply `fromOffset` and `toOffset`. Records that were deleted before are not a loss here."""
    if query.from_offset is None and query.to_offset is None:
        return begin, end
    low, high = query.from_offset or 0, query.to_offset
    earliest = log.earliest(begin)
    end = {place: at if high is None else min(at, high) for place, at in end.items()}
    return {place: min(max(at, low, earliest[place]), end[place]) for place, at in begin.items()}, end


def _timed_starts(log: Log, bound: Bound, places: list[Place], timeless: str) -> Offsets:
    times = _times(bound, places)
    offsets = log.at_times(times)
    without = [place for place in places if offsets.get(place) is None]
    if without and timeless == "error":
        raise OptionError(
            bound.option,
            None,
            f"{shown(without)} has none at or after that time; startingOffsetsByTimestampStrategy = latest begins at the end",
        )
    latest = log.latest(without)
    return {place: latest[place] if (at := offsets.get(place)) is None else at for place in places}


def _literal(log: Log, bound: Bound, places: list[Place], latest: Offsets, verb: str) -> Offsets:
    """Return a bound as offsets. `latest` is read once: later reads of a growing log would differ."""
    said = _for_all(bound.option, bound.offsets, places) if bound.offsets is not None else None
    requested = {place: bound.everywhere if said is None else said[place] for place in places}
    earliest = log.earliest([place for place, at in requested.items() if at == EARLIEST])
    offsets: Offsets = {}
    for place, at in requested.items():
        assert at is not None
        offsets[place] = earliest[place] if at == EARLIEST else latest[place] if at == LATEST else at
    if beyond := {place for place in places if offsets[place] > latest[place]}:
        raise OptionError(bound.option, None, f"it {verb} beyond the end of {shown(beyond)}")
    return offsets


def _times(bound: Bound, places: list[Place]) -> Offsets:
    if bound.time_ms is not None:
        return dict.fromkeys(places, bound.time_ms)
    assert bound.times_ms is not None
    return _for_all(bound.option, bound.times_ms, places)


def _for_all(option: str, said: Mapping[Place, int], places: list[Place]) -> Offsets:
    missing, strange = set(places) - set(said), set(said) - set(places)
    if missing:
        raise OptionError(option, None, f"it must name every partition that is read, and lacks {shown(missing)}")
    if strange:
        raise OptionError(option, None, f"it names {shown(strange)}, which the query does not read")
    return dict(said)
