"""A seeded run gives the figures it gave before; README.md says what to do if it does not."""

import pytest

from tests.golden.run import CRITERIA, FIELDS, fields_of, kept, rounds_of, trained


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_golden_run_is_as_it_was(criterion: str) -> None:
    with trained(criterion) as run:
        before, now = kept(criterion), rounds_of(run)
        if criterion == "auto":
            assert fields_of(run) == FIELDS.read_text().splitlines()
    assert [(n["round"], n["cluster"]) for n in now] == [(n["round"], n["cluster"]) for n in before]
    for old, new in zip(before, now, strict=True):
        numbers = {key for key, value in old.items() if isinstance(value, float)}
        assert {k: v for k, v in new.items() if k not in numbers} == {
            k: v for k, v in old.items() if k not in numbers
        }
        assert {k: new[k] for k in numbers} == pytest.approx({k: old[k] for k in numbers}, rel=1e-4)
