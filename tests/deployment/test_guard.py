"""Who may do what: a stranger, a registered SuperNode and an operator, at a real federation."""

import http.client
import socket
import ssl

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from deployment.federation import Federation
from flwr.cli.build import build_fab_from_files
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from tests.deployment.nginx import needs_nginx

pytestmark = [
    pytest.mark.slow,
    needs_nginx,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # Flower's FABs
]

APP = {
    "pyproject.toml": b"""[project]
name = "sleeper"
version = "1.0.0"
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "sleeper:server"
clientapp = "sleeper:client"
""",
    "sleeper.py": b"""import time
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server, client = ServerApp(), ClientApp()
@server.main()
def main(grid, context):
    time.sleep(600)
""",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    here = Federation(folder)
    try:
        here.up(1, [folder], insecure=False)
        yield here
    finally:
        here.down()


def tried(address, *signed):
    """What an operator's actions return; instead of an answer, the status that refuses it.

    The caller trusts any certificate, and may sign as a SuperNode does.
    """
    url = f"https://{address}"
    with ControlHttpClient(url, verify=False, interceptors=signed) as control:

        def answer_to(action, request):
            try:
                return action(request)
            except httpx.HTTPStatusError as error:
                return error.response.status_code

        (_, key), (code, _) = generate_key_pairs(), build_fab_from_files(APP)
        new = RegisterNodeRequest(public_key=public_key_to_bytes(key), name="site-9")
        yield answer_to(control.ListRuns, ListRunsRequest())
        yield answer_to(control.ListNodes, ListNodesRequest())
        yield answer_to(control.RegisterNode, new)
        run = answer_to(control.StartRun, StartRunRequest(fab=Fab(content=code)))
        yield run
        yield answer_to(control.StopRun, StopRunRequest(run_id=getattr(run, "run_id", 1)))


def test_only_an_operator_lists_registers_runs_and_stops(federation):
    proxy, superlink = map(federation.address, ("proxy", "superlink"))
    key = load_ssh_private_key((federation.folder / "keys" / "site-1").read_bytes(), None)
    supernode = NodeAuthHttpInterceptor(key, key.public_key())
    assert list(tried(proxy)) == [403] * 5
    assert list(tried(proxy, supernode)) == [403] * 5

    runs, nodes, registered, started, stopped = tried(superlink)  # as an operator
    assert not runs.run_dict
    assert [(node.name, node.status) for node in nodes.nodes_info] == [("site-1", "online")]
    assert registered.node_id
    assert started.run_id
    assert stopped.success


def test_the_superlink_listens_on_loopback_only(federation):
    with socket.socket() as probe:  # 127.0.0.2 is another address of any Linux machine
        assert probe.connect_ex(("127.0.0.2", federation.settings["ports"]["superlink"])) != 0


def test_the_proxy_passes_no_path_but_those_of_supernodes(federation):
    """Every path that this SuperLink serves, and one of them written like another."""
    proxy, superlink = map(federation.address, ("proxy", "superlink"))
    with httpx.Client(verify=False) as client:
        served = client.get(f"https://{superlink}/openapi.json").json()["paths"]
        others = [path for path in served if not path.startswith("/v1/fleet/")]
        assert {"/v1/control/start-run", "/v1/runtime/pull-messages"} <= set(others)
        for path in [*others, "/openapi.json", "/docs", "/"]:
            assert client.post(f"https://{proxy}{path}").status_code == 403, path
        for path in set(served) - set(others):  # the SuperLink itself asks for a registered key
            assert status(proxy, path) == 401, path
    assert status(superlink, "/v1/control/list-nodes") == 200
    for path in (
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/..%2fcontrol/list-nodes",
        "/v1/control/list-nodes#/../../fleet/x",
        "/v1/control/list-nodes%23/../../fleet/x",
        "/v1/control/list-nodes%3f/../../fleet/x",
        "/v1/control/list-nodes?/v1/fleet/",
        "//v1/control/list-nodes",
        "https://x/v1/control/list-nodes",
    ):
        assert status(proxy, path) in (400, 403, 404), path


def status(address, path):
    """The status of a POST to a path that is sent as it is written."""
    anyone = ssl._create_unverified_context()
    connection = http.client.HTTPSConnection(address, context=anyone)
    connection.request("POST", path, body=b"", headers={"content-type": PROTOBUF_MEDIA_TYPE})
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_what_is_sent_is_bounded(federation):
    with httpx.Client(verify=False) as client:
        url = f"https://{federation.address('proxy')}/v1/fleet/push-object"
        assert client.post(url, content=bytes(33 << 20)).status_code == 413
