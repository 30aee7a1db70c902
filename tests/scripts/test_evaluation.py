import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from reproduction.evaluation import separation_gap

from cflower.algorithm.bipartition import bipartition
from tests.algorithm.planted import laws
from tests.algorithm.test_bipartition import as_sides, cosines


@laws
@given(cosines(st.floats(-1, 1, width=32), smallest=3), st.data())
def test_a_positive_separation_gap_makes_the_bipartition_correct(similarity, data):
    m = len(similarity)
    groups = np.array(data.draw(st.lists(st.integers(0, 1), min_size=m, max_size=m)))
    assume(0 < groups.sum() < m)
    if separation_gap(similarity, groups) > 1e-9:
        sides = {frozenset(np.flatnonzero(groups == g).tolist()) for g in (0, 1)}
        assert as_sides(bipartition(similarity)) == sides
