import pytest


@pytest.mark.slow
def test_an_absent_client_is_assigned_to_its_group_and_a_stranger_to_none(tmp_path):
    from leave_one_out import config_of, federation_without, report

    config = config_of("digits", "", "label-permutation", 0, clients=20, rounds=5, more={})
    record = federation_without((0, 6, 12, 18), config, tmp_path / "runs")
    assert record["exact"]
    assert [n["group"] for n in record["newcomers"]] == [0, 1, 2, 3]
    assert all(n["right"] and n["familiar"] for n in record["newcomers"])
    assert not any(n["stranger"]["familiar"] for n in record["newcomers"])
    assert {n["unlabelled"]["outcome"] for n in record["newcomers"]} == {"ambiguous"}
    assert not list(tmp_path.iterdir())
    columns = report([{"data": "digits", **record}]).columns
    row = [next(iter(column.cells)) for column in columns]
    assert row[2:8] == ["1", "1", str(record["last_split"]), "4 of 4", "4 of 4", "0 of 4"]
    assert row[-4:] == ["0 of 4", "4", "0", "0"]


def test_in_turn_everyone_is_taken_out_once():
    from leave_one_out import absences

    for clients, literally in [(20, False), (20, True), (8, False)]:
        everyone = [client for absent in absences(clients, literally) for client in absent]
        assert sorted(everyone) == list(range(clients))


def test_a_record_of_another_config_is_not_the_run_asked_for(tmp_path):
    import json

    from leave_one_out import config_of, is_done

    config, path = config_of("digits", "", "rotation", 0, 20, 8, {}), tmp_path / "record.json"
    assert not is_done(path, config)
    path.write_text(json.dumps({"config": config}))
    assert is_done(path, config)
    assert not is_done(path, config | {"num-server-rounds": 9})
