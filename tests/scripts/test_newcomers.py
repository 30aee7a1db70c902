import pytest
from families.newcomers import config_of, job_of, lines_of, measured


@pytest.mark.slow
def test_an_absent_client_is_assigned_to_its_group_and_a_stranger_to_none():
    config = config_of("digits", "", "label-permutation", 0) | {"num-server-rounds": 5}
    job = job_of("digits", config, (0, 6, 12, 18))
    record = {**job.what, **measured(job)}
    assert record["exact"]
    assert [n["group"] for n in record["newcomers"]] == [0, 1, 2, 3]
    assert all(n["right"] and n["familiar"] for n in record["newcomers"])
    assert not any(n["noise_is_familiar"] for n in record["newcomers"])
    (row,) = (list(row.values()) for row in lines_of([record]))
    assert row[2:8] == [1, 1, record["last_split"], "4 of 4", "4 of 4", "0 of 4"]
