"""A SuperLink and its SuperNodes on this machine, for trying out: everything on loopback.

As docs/guide/deployment.md sets it up, unless insecure: TLS by a certificate authority of its own,
SuperNodes with keys, and a proxy that passes their requests to the SuperLink, but none to its
Control API. Each SuperNode, ``site-1`` and so on, has its own data folder: one that is given, or
handwritten digits, upside down for every second SuperNode.
"""

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

from cflower.errors import FederationError
from deployment.materials import CLASSES, make_certificates, make_data, make_key
from deployment.processes import BIN, Process, accepts, free_port, output_of
from deployment.proxy import nginx, proxy_command, site

PROJECT = Path(__file__).parents[2]
"""The clone, whose folder is cflower's own app."""
NAME = "federation"
"""Name of the connection in Flower's config.toml."""
PATIENCE = 150.0
"""Seconds until all SuperNodes must be online. One with a key that was killed is refused until its
session has expired, after a good minute."""
ACTIVE = "SuperNode ID:"
"""Text in a SuperNode's log once the SuperLink has accepted it."""
SETTINGS = "split-criterion='norms' eps1=3.5 eps2=1.5 gamma-max=0.6 local-epochs=6"
"""These split four clients early; the default criterion needs at least three of a kind."""

WAY = """
SuperNodes go through nginx (port {proxy}), which refuses everybody else. You, as an operator, go to
the SuperLink (port {superlink}), which is reached from this machine only."""


class Federation:
    """The federation in a folder: its settings in ``federation.json``, and its processes.

    The folder is made when the federation is started for the first time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self._file = self.folder / "federation.json"
        self.settings: dict[str, Any] = {"ports": {}, "insecure": False, "nodes": {}}
        if self._file.exists():
            self.settings |= json.loads(self._file.read_text())

    @property
    def nodes(self) -> dict[str, Process]:
        """The SuperNodes by name."""
        return {name: Process(self.folder, name) for name in self.settings["nodes"]}

    @property
    def servers(self) -> dict[str, Process]:
        """The SuperLink, and the proxy in front of it: SuperNodes connect to the last."""
        names = ["superlink"] if self.settings["insecure"] else ["superlink", "proxy"]
        return {name: Process(self.folder, name) for name in names}

    def address(self, server: str) -> str:
        """Address of the SuperLink or the proxy."""
        return f"127.0.0.1:{self.settings['ports'][server]}"

    def flwr(self, *words: str) -> str:
        """Run Flower's command line; its output."""
        return output_of(BIN / "flwr", *words, folder=self.folder)

    def up(self, nodes: int, data: list[Path], insecure: bool) -> None:
        """Start the processes that are not running, and wait until all are online.

        There will be at least so many ``nodes``. The first of them read these folders of ``data``,
        the others digits. ``insecure`` means without TLS, keys and proxy. Raises a FederationError
        if nginx is missing, or a process does not start; its log is kept.
        """
        if not insecure:
            nginx()
        if not any(process.pid for process in (*self.servers.values(), *self.nodes.values())):
            ports = {"superlink": free_port(), "proxy": free_port()}
            self.settings |= {"ports": ports, "insecure": insecure}
        elif insecure != self.settings["insecure"] or not self.settings["ports"]:
            raise FederationError("This federation runs with the other security: `down` first.")
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, folder in enumerate([*data, *[None] * (nodes - len(data))], start=1):
            self._add_node(number, folder)
        self._file.write_text(json.dumps(self.settings, indent=2) + "\n")
        self._start_servers()
        self._start_nodes()
        self.print_status()
        if not insecure:
            print(WAY.format(**self.settings["ports"]))
        print(self.next_steps())

    def _add_node(self, number: int, data: Path | None) -> None:
        """Give a new SuperNode its data and its key."""
        name = f"site-{number}"
        if name in self.settings["nodes"]:
            return
        if data is None:
            data = self.folder / "data" / name
            make_data(data, number)
        if not (self.folder / "keys" / name).exists():
            make_key(self.folder / "keys" / name)
        self.settings["nodes"][name] = {"data": str(data.absolute())}

    def _start_servers(self) -> None:
        """Start the SuperLink, and the proxy; register the keys of the SuperNodes."""
        certificates, address = self.folder / "certificates", self.address("superlink")
        security, entry = ["--insecure"], "insecure = true"
        if not self.settings["insecure"]:
            make_certificates(certificates)
            security = ["--ssl-ca-certfile", f"{certificates}/ca.crt"]
            security += ["--ssl-certfile", f"{certificates}/server.pem"]
            security += ["--ssl-keyfile", f"{certificates}/server.key", "--enable-supernode-auth"]
            entry = f'root-certificates = "{certificates}/ca.crt"'
            block = site(self.address("proxy"), address, str(certificates))
            self.servers["proxy"].start(proxy_command(self.folder / "nginx", block))
        home = self.folder / "flwr-home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n'
            f'[superlink.{NAME}]\naddress = "{address}"\n{entry}\n'
        )
        where = ["--host", "127.0.0.1", "--port", self.settings["ports"]["superlink"]]
        database = ["--database", self.folder / "superlink.db"]
        self.servers["superlink"].start([*self._superlink(), *where, *database, *security])
        self._wait_for_servers()
        for name in () if self.settings["insecure"] else self.nodes:
            key = f"keys/{name}.pub"
            output = self.flwr("supernode", "register", key, NAME, "--name", name)
            if not re.search("registered|already in use", output):
                raise FederationError(f"{name} could not be registered:\n{output}")

    def _superlink(self) -> list[object]:
        """The command that starts the SuperLink, without its options."""
        return [BIN / "flower-superlink"]

    def _wait_for_servers(self) -> None:
        deadline = time.monotonic() + 60
        for name, process in self.servers.items():
            while not accepts(self.settings["ports"][name]):
                if process.pid is None or time.monotonic() > deadline:
                    raise FederationError(f"The {name} did not start: see {process.log}")
                time.sleep(0.2)

    def _start_nodes(self) -> None:
        """Start the SuperNodes, again those that were refused, until all are online."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for name, node in self.nodes.items():
                node.start(self._supernode(name))
            if self._all_online():
                return
            if time.monotonic() > deadline:
                raise FederationError(f"Not every SuperNode came up: see {self.folder / 'logs'}")
            time.sleep(2.0)

    def _supernode(self, name: str) -> list[object]:
        """The command that starts a SuperNode."""
        security: list[object] = ["--insecure"]
        if not self.settings["insecure"]:
            security = ["--root-certificates", self.folder / "certificates" / "ca.crt"]
            security += ["--auth-supernode-private-key", self.folder / "keys" / name]
        # A new port each time: the children of a killed SuperNode still look for it at the old one,
        # and would take a message of the new one with them when they end.
        where = ["--host", "127.0.0.1", "--port", free_port()]
        data = self.settings["nodes"][name]["data"]
        config = ["--node-config", f'client-id="{name}" data-path="{data}"']
        entrance = self.address(list(self.servers)[-1])
        return [BIN / "flower-supernode", "--superlink", entrance, *security, *where, *config]

    def _all_online(self) -> bool:
        # The SuperLink counts a killed SuperNode as online for a while, so the logs are read too.
        active = all(node.has_logged(ACTIVE) for node in self.nodes.values())
        return active and self.online() >= len(self.nodes)

    def online(self) -> int:
        """The number of SuperNodes that the SuperLink sees."""
        return self.flwr("supernode", "ls", NAME, "--format", "json").count('"online"')

    def down(self) -> None:
        """End exactly the processes that `up` started."""
        for process in (*self.nodes.values(), *reversed(self.servers.values())):
            print(f"{process.name}: {'ended' if process.end() else 'was not running'}")

    def print_status(self) -> None:
        """Print which processes are running."""
        what = {name: f"127.0.0.1:{port}" for name, port in self.settings["ports"].items()}
        what |= {name: node["data"] for name, node in self.settings["nodes"].items()}
        for process in (*self.servers.values(), *self.nodes.values()):
            state = f"process {process.pid}" if process.pid else "not running"
            print(f"{process.name:12} {state:16} {what.get(process.name, '')}".rstrip())

    def next_steps(self) -> str:
        """The commands to run next."""
        config = f"min-available-nodes={len(self.nodes)} class-names='{','.join(CLASSES)}'"
        config += f" num-server-rounds=8 {SETTINGS}"
        if len(self.nodes) < 4:
            config += " min-cluster-size=1"
        commands = (
            f"export FLWR_HOME={shlex.quote(str(self.folder / 'flwr-home'))}",
            f'{BIN / "flwr"} run {shlex.quote(str(PROJECT))} {NAME} --stream -c "{config}"',
            f"{BIN / 'flwr'} ls {NAME}",
            f"{BIN / 'flwr'} stop RUN_ID {NAME}",
            f"{BIN / 'cflower'} show",
        )
        return "\n  ".join(("\nNext:", *commands))
