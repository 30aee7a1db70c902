"""`cflower watch`: one page on this machine, newer content when there is some."""

import json
import threading
from http.client import HTTPConnection

import pytest

from cflower.errors import RunFolderError
from cflower.runs.watch import HOST, ReportServer
from tests.runs.folders import made_up_run


@pytest.fixture
def server(tmp_path):
    path = made_up_run(tmp_path / "run", finished=False)
    with ReportServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, path, **headers):
    connection = HTTPConnection(HOST, server.server_port, timeout=10)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_page_and_its_content(server):
    answer, body = get(server, "/")
    assert (answer.status, "connect-src 'self'" in body, "fetch(" in body) == (200, True, True)
    answer, body = get(server, "/content")
    assert json.loads(body)["run"]["finished"] is False
    assert server.server_address[0] == "127.0.0.1"


def test_content_is_sent_again_only_when_there_is_more(server):
    answer, _ = get(server, "/content")
    seen = answer.headers["ETag"]
    answer, body = get(server, "/content", If_None_Match=seen)
    assert (answer.status, body) == (304, "")
    rounds = server.run_folder / "rounds.jsonl"
    line = json.loads(rounds.read_text().splitlines()[-1])
    with rounds.open("a") as file:
        file.write(json.dumps(line | {"round": 21}) + "\n")
    answer, body = get(server, "/content", If_None_Match=seen)
    assert json.loads(body)["run"]["rounds"] == 21


def test_other_names_and_paths_are_refused(server):
    assert get(server, "/", Host="evil.example")[0].status == 403
    assert get(server, "/../config.json")[0].status == 404
    assert get(server, "/config.json")[0].status == 404


def test_a_file_in_between_does_not_stop_it(server):
    summary = server.run_folder / "summary.json"
    whole = summary.read_text()
    summary.write_text(whole[:10])
    assert get(server, "/content")[0].status == 500
    summary.write_text(whole)
    assert get(server, "/content")[0].status == 200


def test_a_port_that_is_taken_and_a_folder_that_is_no_run(server, tmp_path):
    with pytest.raises(RunFolderError, match=f"Cannot serve on port {server.server_port}"):
        ReportServer(server.run_folder, server.server_port)
    with pytest.raises(RunFolderError, match=r"config\.json"):
        ReportServer(tmp_path / "nothing")
