# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Columns and sections as Hypothesis draws them."""

from hypothesis import strategies as st

INT64 = st.integers(-(2**63), 2**63 - 1)

# Lengths around the places where a varint grows by a byte (64 and 8192), beside the small ones.
sizes = st.one_of(st.integers(0, 8), st.sampled_from([62, 63, 64, 65, 127, 128, 8191, 8192, 8200]))
contents = st.builds(
    lambda size, seed: (seed * (size // len(seed) + 1))[:size], sizes, st.binary(min_size=1, max_size=7)
)
maybe_bytes = st.one_of(st.none(), contents)
headers = st.lists(st.tuples(st.text(max_size=6), st.one_of(st.none(), st.binary(max_size=6))), max_size=3).map(tuple)
near = st.one_of(st.integers(-70, 70), st.integers(-9000, 9000), st.integers(-(2**40), 2**40))


@st.composite
def columns(draw):
    """(values, keys, timestamps, headers, base timestamp) that the format can hold."""
    count = draw(st.one_of(st.integers(1, 6), st.integers(60, 70)))
    base = draw(st.one_of(st.just(0), st.just(1_700_000_000_000), st.sampled_from([2**63 - 1, -(2**63)]), INT64))

    def column(items):
        return draw(st.one_of(st.none(), st.lists(items, min_size=count, max_size=count)))

    within = near.map(lambda delta: min(max(base + delta, -(2**63)), 2**63 - 1))
    values = draw(st.lists(maybe_bytes, min_size=count, max_size=count))
    return values, column(maybe_bytes), column(within), column(headers), base
