import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from reproduction.evaluation import confusion_matrix, separation_gap

from cflower.algorithm.bipartition import bipartition
from cflower.data.examples import Examples
from cflower.learning.models import build_model
from cflower.learning.training import evaluate
from tests.algorithm.planted import laws
from tests.algorithm.test_bipartition import as_sides, cosines


def test_a_confusion_matrix_counts_what_evaluation_counts():
    rng = np.random.default_rng(0)
    data = Examples(rng.normal(size=(50, 4)).astype("f4"), rng.integers(2, size=50), ("no", "yes"))
    model = build_model("mlp", data.input_shape, data.num_classes, seed=0)
    counts = confusion_matrix(model, data)
    assert counts.sum(axis=1).tolist() == np.bincount(data.labels).tolist()
    assert counts.trace() / len(data) == evaluate(model, data)["accuracy"]


@laws
@given(cosines(st.floats(-1, 1, width=32), smallest=3), st.data())
def test_a_positive_separation_gap_makes_the_bipartition_correct(similarity, data):
    m = len(similarity)
    groups = np.array(data.draw(st.lists(st.integers(0, 1), min_size=m, max_size=m)))
    assume(0 < groups.sum() < m)
    if separation_gap(similarity, groups) > 1e-9:
        sides = {frozenset(np.flatnonzero(groups == g).tolist()) for g in (0, 1)}
        assert as_sides(bipartition(similarity)) == sides
