"""A SuperLink and its SuperNodes on this one machine: everything on loopback.

With TLS by a certificate authority of its own and authenticated SuperNodes, unless insecure. Each
SuperNode, ``site-1`` and so on, has a data folder of its own: handwritten digits, which every
second one sees upside down, or one that is given.
"""

import json
import shlex
import time
from pathlib import Path
from typing import Any

from cflower.deployment.materials import CLASSES, make_certificates, make_data, make_key
from cflower.deployment.processes import BIN, Process, accepts, free_port, run
from cflower.errors import FederationError

PROJECT = Path(__file__).parents[2]
"""The folder of cflower's own app, where its source lies; an installed package has none."""
NAME = "federation"
"""Of the connection in Flower's config.toml."""

PATIENCE = 150.0
"""Seconds until all must be there. A SuperNode with a key that was killed is refused until its
session has run out, a good minute later."""
ACTIVE = "SuperNode ID:"
"""What a SuperNode's log says once the SuperLink has let it in."""

SETTINGS = "split-criterion='norms' eps1=3.5 eps2=1.5 gamma-max=0.6 local-epochs=6"
"""Split these few clients early; the default criterion needs at least three of a kind."""


class Federation:
    """The federation in a folder: its settings in ``federation.json``, its processes by name.

    Parameters
    ----------
    folder : Path
        Absolute; made when it first goes up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / "federation.json"
        self.settings: dict[str, Any] = {"port": 0, "insecure": False, "nodes": {}}
        if self._file.exists():
            self.settings = json.loads(self._file.read_text())
        self.superlink = Process(folder, "superlink")
        self._processes: dict[str, Process] = {}

    @property
    def nodes(self) -> dict[str, Process]:
        """The SuperNodes by name; the same object each time, because it knows when it started."""
        for name in self.settings["nodes"]:
            if name not in self._processes:
                self._processes[name] = Process(self.folder, name)
        return self._processes

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.settings['port']}"

    def flwr(self, *words: object, check: bool = True) -> str:
        """What Flower's command line printed."""
        return run(BIN / "flwr", *words, folder=self.folder, check=check)

    def up(self, nodes: int, data: list[Path], insecure: bool) -> None:
        """Start what does not run yet, and wait until all of it is there.

        Parameters
        ----------
        nodes : int
            How many SuperNodes there are at least.
        data : list of Path
            Folders of new SuperNodes, in their order; digits for those that have none.
        insecure : bool
            Without TLS and keys.

        Raises
        ------
        FederationError
            If something does not come up; the logs stay.
        """
        alive = [process for process in (self.superlink, *self.nodes.values()) if process.pid]
        if alive and insecure != self.settings["insecure"]:
            raise FederationError("This federation runs with the other security: `down` first.")
        self.settings["insecure"] = insecure
        self.folder.mkdir(parents=True, exist_ok=True)
        if not alive:
            self.settings["port"] = free_port()
        for number in range(1, max(nodes, len(data)) + 1):
            self._provide(number, data[number - 1] if number <= len(data) else None)
        self._file.write_text(json.dumps(self.settings, indent=2) + "\n")
        self._start_superlink()
        for name, node in self.nodes.items():
            if not insecure:
                said = self.flwr("supernode", "register", f"keys/{name}.pub", NAME, "--name", name,
                                 check=False)  # fmt: skip
                if "registered" not in said and "already in use" not in said:
                    raise FederationError(f"{name} could not be registered:\n{said}")
            if node.pid is None:
                self._start_node(name, node)
        self._await_nodes()
        self.status()
        print(self.next_steps())

    def _provide(self, number: int, data: Path | None) -> None:
        """Data and key of a node that is new here."""
        name = f"site-{number}"
        if name in self.settings["nodes"]:
            return
        if data is None:
            data = self.folder / "data" / name
            make_data(data, number)
        if not (self.folder / "keys" / name).exists():
            make_key(self.folder / "keys" / name)
        self.settings["nodes"][name] = {"data": str(data.absolute())}

    def _start_superlink(self) -> None:
        certificates = self.folder / "certificates"
        if self.settings["insecure"]:
            security, entry = ["--insecure"], "insecure = true"
        else:
            if not certificates.exists():
                make_certificates(certificates)
            security = ["--ssl-ca-certfile", f"{certificates}/ca.crt"]
            security += ["--ssl-certfile", f"{certificates}/server.pem"]
            security += ["--ssl-keyfile", f"{certificates}/server.key", "--enable-supernode-auth"]
            entry = f'root-certificates = "{certificates}/ca.crt"'
        home = self.folder / "flwr-home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n'
            f'[superlink.{NAME}]\naddress = "{self.address}"\n{entry}\n'
        )
        if self.superlink.pid is None:
            where = ["--host", "127.0.0.1", "--port", self.settings["port"]]
            database = ["--database", self.folder / "superlink.db"]
            self.superlink.start([BIN / "flower-superlink", *where, *database, *security])
        deadline = time.monotonic() + 60
        while not accepts(self.settings["port"]):
            if self.superlink.pid is None or time.monotonic() > deadline:
                raise FederationError(f"The SuperLink did not start: see {self.superlink.log}")
            time.sleep(0.2)

    def _start_node(self, name: str, node: Process) -> None:
        data = self.settings["nodes"][name]["data"]
        # A new port each time: what a killed SuperNode started still looks for it at the old one,
        # and would take a message of the new one with it when it ends.
        port = free_port()
        security: list[object] = ["--insecure"]
        if not self.settings["insecure"]:
            security = ["--root-certificates", self.folder / "certificates" / "ca.crt"]
            security += ["--auth-supernode-private-key", self.folder / "keys" / name]
        command = [BIN / "flower-supernode", "--superlink", self.address, *security]
        command += ["--host", "127.0.0.1", "--port", port]
        node.start([*command, "--node-config", f'client-id="{name}" data-path="{data}"'])

    def online(self) -> int:
        """How many SuperNodes the SuperLink sees."""
        said = self.flwr("supernode", "ls", NAME, "--format", "json", check=False)
        try:
            return sum(node["status"] == "online" for node in json.loads(said)["nodes"])
        except (json.JSONDecodeError, KeyError):
            return 0

    def _await_nodes(self) -> None:
        """Wait until every SuperNode is online; one that was refused is started again."""
        deadline = time.monotonic() + PATIENCE
        while True:
            down = {name: node for name, node in self.nodes.items() if node.pid is None}
            # A killed node still counts as online for a while, so its own word is asked for too.
            if all(node.said(ACTIVE) for node in self.nodes.values()) and (
                self.online() >= len(self.nodes)
            ):
                return
            if time.monotonic() > deadline:
                raise FederationError(f"Not every SuperNode came up: see {self.folder / 'logs'}")
            time.sleep(2.0)
            for name, node in down.items():
                self._start_node(name, node)

    def down(self) -> None:
        """End exactly the processes that `up` started."""
        for process in (*self.nodes.values(), self.superlink):
            print(f"{process.name}: {'ended' if process.end() else 'was not running'}")

    def status(self) -> None:
        """Say what lives."""
        for process in (self.superlink, *self.nodes.values()):
            state = f"process {process.pid}" if process.pid else "not running"
            data = self.settings["nodes"].get(process.name, {}).get("data", self.address)
            print(f"{process.name:12} {state:16} {data}")

    def next_steps(self) -> str:
        """The commands to run next."""
        config = f"min-available-nodes={len(self.nodes)} class-names='{','.join(CLASSES)}'"
        config += f" num-server-rounds=8 {SETTINGS}"
        app = PROJECT if (PROJECT / "pyproject.toml").is_file() else Path("CFLOWER_SOURCE")
        return "\n".join(
            (
                "\nNext:",
                f"  export FLWR_HOME={shlex.quote(str(self.folder / 'flwr-home'))}",
                f'  {BIN / "flwr"} run {shlex.quote(str(app))} {NAME} --stream -c "{config}"',
                f"  {BIN / 'flwr'} ls {NAME}",
                f"  {BIN / 'flwr'} stop RUN_ID {NAME}",
                f"  {BIN / 'cflower'} show",
            )
        )
