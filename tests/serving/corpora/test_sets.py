"""Sets of integers against Python's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.indexes.exact import union


@given(st.lists(st.lists(st.integers(0, 20), max_size=12), min_size=1, max_size=4))
def test_union_is_that_of_python(several: list[list[int]]) -> None:
    found = union(*(np.array(one, dtype=np.int64) for one in several))
    assert found.tolist() == sorted(set().union(*several))
