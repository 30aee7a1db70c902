"""What does not fit the others is told with what it is and what they have."""

from cflower.messages.data_spec import DataSpec, most_common

CATS = {"input-shape": [1, 8, 8], "class-names": ["cat", "dog"]}


def test_what_differs_is_named_on_both_sides():
    spec = most_common([CATS, {**CATS, "class-names": ["bird"]}, CATS])
    assert spec == DataSpec((1, 8, 8), ("cat", "dog"))
    assert spec.problem_with(CATS) == ""
    assert spec.problem_with({**CATS, "class-names": ["bird"]}).startswith(
        "its classes are bird, but those of the others are cat, dog;"
    )
    told = spec.problem_with({**CATS, "input-shape": [3, 8, 8]})
    assert "(3, 8, 8), but those of the others have (1, 8, 8)" in told
