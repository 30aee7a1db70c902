"""A SuperNode is killed while it uploads its reply: the replies of the others count."""

import json
import os
import sys
from pathlib import Path

import pytest
from deployment.federation import Federation
from deployment.processes import output_of

from tests.command import BIN, PROJECT, until
from tests.deployment.nginx import needs_nginx

UPLOAD = float(os.environ.get("CFLOWER_UPLOAD", "45"))
"""Seconds until the SuperLink gives an upload up. Flower has 180: CFLOWER_UPLOAD=180 tests that."""
FIRST_OF_ROUND_2 = 3
"""The replies of a SuperNode are those to the roll call, to round 1, to round 2."""


class Dying(Federation):
    """A federation of which the last SuperNode is killed in round 2."""

    def _supernode(self, name):
        command = super()._supernode(name)
        return (
            [*self.started("supernode", FIRST_OF_ROUND_2), *command[1:]]
            if name == "site-3"
            else command
        )

    def _superlink(self):
        return self.started("superlink", int(UPLOAD))

    @staticmethod
    def started(kind, number):
        return [sys.executable, Path(__file__).parent / "dying.py", kind, number]


@pytest.mark.slow
@needs_nginx
def test_a_node_killed_during_its_upload_costs_the_others_no_reply(tmp_path):
    here = Dying(tmp_path / "federation")
    try:
        here.up(3, [], insecure=False)
        config = "min-available-nodes=3 class-names='0,1,2,3,4,5,6,7,8,9' num-server-rounds=3 "
        config += f"round-timeout={UPLOAD * 2 / 3} model='mlp' output-dir='{tmp_path / 'runs'}'"
        output_of(BIN / "flwr", "run", PROJECT, "federation", "-c", config, folder=here.folder)

        def rounds():
            files = (tmp_path / "runs").glob("*/rounds.jsonl")
            return [json.loads(line) for file in files for line in file.read_text().splitlines()]

        log = here.folder / "logs" / "superlink.log"
        until(lambda: len(rounds()) == 3, 3 * UPLOAD + 400, lambda: log.read_text()[-4000:])
        first, second, third = rounds()
        print(
            *((line["heard"], line.get("missing"), line["seconds"]) for line in rounds()), sep="\n"
        )
        assert first["heard"] == ["site-1", "site-2", "site-3"]
        assert second["heard"] == third["heard"] == ["site-1", "site-2"]
    finally:
        here.down()
