"""The real simulation engine with a client that takes its worker process down."""

import pytest

from tests.command import in_new_process

PROGRAM = """
import os
from flwr.app import Message
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of

def dies(message, content, server_round):
    if server_round == 3:
        os._exit(1)
    return Message(content, reply_to=message)

clients, app = Quadratics((0, 1) * 5, spoil={0: dies}), ServerApp()

@app.main()
def main(grid, context):
    try:
        strategy_of(fraction_evaluate=0.0).start(grid, initial_arrays(), 10, timeout=60)
        print("COMPLETED", flush=True)
    except Exception as error:
        print("STOPPED", type(error).__name__, error, flush=True)

resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
run_simulation(app, clients.app(), num_supernodes=10, backend_config=resources)
"""


@pytest.mark.slow
def test_the_run_stops_because_a_worker_died():
    printed = in_new_process(PROGRAM)
    assert "COMPLETED" not in printed
    (stopped,) = [line for line in printed.splitlines() if line.startswith("STOPPED")]
    assert stopped.startswith("STOPPED FederationError The run stops in round ")
    assert "because a worker of the simulation engine died" in stopped
    assert "ActorDiedError" in stopped
