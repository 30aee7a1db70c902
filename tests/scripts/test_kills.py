"""The table of killed processes; the kills themselves take minutes (`run.py kills`)."""

import os
import subprocess
import sys

from deployment.kills import CASES, is_server_app, report


def test_a_result_is_the_same_if_its_models_are_those_of_the_run_without_a_kill(tmp_path, capsys):
    results = dict.fromkeys(CASES, "a") | {"the SuperLink": "b"}
    records = [{"killed": name, "what": f"{name}!", "result": one} for name, one in results.items()]
    report(records[::-1], tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "!" in line]
    assert [name for name in CASES for line in lines if f"{name}!" in line] == [*CASES]
    assert ["another" in line for line in lines] == [name == "the SuperLink" for name in CASES]


def test_the_process_of_a_serverapp_is_known_by_its_command():
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", waiting, "flwr-serverapp"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()  # until then it may still be a copy of this process
        assert is_server_app(process.pid)
        assert not is_server_app(os.getpid())
    finally:
        process.kill()
        process.communicate()
    assert not is_server_app(process.pid)
