import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cflower.algorithm.similarity import cosine_similarity, cosines_to
from tests.algorithm.planted import laws

shapes = st.tuples(st.integers(1, 6), st.integers(1, 5))
updates = arrays(np.float64, shapes, elements=st.floats(-100, 100, width=16))


@laws
@given(updates)
def test_is_symmetric_with_unit_diagonal_and_within_bounds(matrix):
    similarity = cosine_similarity(matrix)
    assert np.array_equal(similarity, similarity.T)
    assert np.array_equal(np.diag(similarity), np.ones(len(matrix)))
    assert np.all(np.abs(similarity) <= 1)


@laws
@given(updates)
def test_equals_the_quotient_of_eq_44(matrix):
    similarity = cosine_similarity(matrix)
    for i, a in enumerate(matrix):
        for j, b in enumerate(matrix):
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            if i != j and lengths > 0:
                assert np.isclose(similarity[i, j], a @ b / lengths, atol=1e-12)


def test_lengths_whose_squares_leave_the_range_of_floats_do_not_matter():
    for scale in (1e-300, 1e300):
        similarity = cosine_similarity(np.array([[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0]]) * scale)
        np.testing.assert_allclose(similarity[0], [1, np.sqrt(0.5), -1])


def test_keeps_single_precision():
    assert cosine_similarity(np.ones((2, 3), np.float32)).dtype == np.float32


@laws
@given(updates)
def test_cosines_of_one_to_others_are_a_row_of_the_matrix(matrix):
    row = cosines_to(matrix[0], [*matrix[1:]])
    np.testing.assert_allclose(row, cosine_similarity(matrix)[0, 1:], atol=1e-12)
