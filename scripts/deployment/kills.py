"""Kill -9 of real processes in mid-run: what happens to the run, and is its result the same?

    python scripts/run.py kills --out outputs/kills

A SuperLink and three SuperNodes on loopback (`deployment.federation`, without TLS and keys), five
rounds. The same models as of a run that nobody interrupted, to the bit, are "the same".
"""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import command
import typer
from command import ALL, chosen, out_folder
from records import Job, Record, run_all
from tables import show

from cflower.errors import FederationError
from cflower.seeding import generator
from deployment.federation import PROJECT, Federation
from deployment.materials import CLASSES
from deployment.processes import BIN, descendants, environment, output_of, send

NODES, ROUNDS = 3, 5
KILLS = 10
PATIENCE = 900.0
"""Seconds to wait for anything."""
CONFIG = (
    f"min-available-nodes={NODES} class-names='{','.join(CLASSES)}' num-server-rounds={ROUNDS} "
    "model='mlp' personal=false round-timeout=60.0 node-timeout=60.0"
)


class Site(Federation):
    """The federation of one case, and its runs."""

    @property
    def runs(self) -> list[Path]:
        """The folders of its runs, the first one first."""
        return sorted(path.parent for path in self.folder.glob("runs/*/config.json"))

    def command(self, more: str = "") -> list[str]:
        """The `flwr run` of a run, or of one that goes on."""
        config = f"{CONFIG} output-dir='{self.folder / 'runs'}' {more}"
        return [str(BIN / "flwr"), "run", str(PROJECT), "federation", "-c", config]

    def run(self, more: str = "") -> None:
        """Start a run."""
        printed = output_of(*self.command(more), folder=self.folder)
        if "Successfully started" not in printed:
            raise FederationError(printed)

    def listed(self) -> list[dict[str, Any]]:
        """What the SuperLink knows of its runs, the newest first."""
        text = self.flwr("ls", "federation", "--format", "json")
        runs: list[dict[str, Any]] = json.loads(text[text.index("{") :])["runs"]
        return sorted(runs, key=lambda run: str(run["pending-at"]), reverse=True)

    def lines(self) -> list[dict[str, Any]]:
        """The recorded rounds of the last run."""
        path = self.runs[-1] / "rounds.jsonl" if self.runs else Path()
        return [*map(json.loads, path.read_text().splitlines())] if path.is_file() else []

    def rounds(self) -> int:
        """Rounds of the last run that are recorded."""
        return max((line["round"] for line in self.lines()), default=0)

    def finished(self) -> bool:
        """Whether the last run has ended as it should."""
        path = self.runs[-1] / "summary.json" if self.runs else Path()
        return path.is_file() and bool(json.loads(path.read_text())["finished"])

    def result(self) -> str:
        """Digest of the last run's models."""
        models = sorted((self.runs[-1] / "models").glob("*.safetensors"))
        return hashlib.sha256(b"".join(path.read_bytes() for path in models)).hexdigest()

    def server_app(self) -> int | None:
        """Process id of the ServerApp that is running."""
        pid = self.servers["superlink"].pid
        return next(filter(is_server_app, descendants(pid) if pid else ()), None)


def is_server_app(pid: int) -> bool:
    """Whether a process is Flower's one of a ServerApp."""
    try:
        return b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def until(what: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait for something; whether it came in time."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    """A federation that runs, and is ended."""
    site = Site(folder)
    site.up(NODES, [], insecure=True)
    try:
        yield site
    finally:
        site.down()


def uninterrupted(site: Site) -> Record:
    """A run that nobody interrupts."""
    site.run()
    assert until(site.finished)
    return {"what": f"{site.rounds()} rounds"}


def command_killed(site: Site) -> Record:
    """`flwr run --stream` is killed at ten instants of its first seconds, and once in round 2."""
    begun = 0
    for kill in range(KILLS):
        before, folders, moment = len(site.listed()), len(site.runs), 1.0 + 1.5 * kill
        process = subprocess.Popen(
            [*site.command(), "--stream"],
            env=environment(site.folder),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if kill == KILLS - 1:
            until(partial(in_round_2, site, folders))
        else:
            time.sleep(moment)
        process.kill()
        process.wait()
        runs = site.listed()
        begun += len(runs) > before
        if kill < KILLS - 1 and len(runs) > before:
            site.flwr("stop", str(runs[0]["run-id"]), "federation")
            until(lambda: site.server_app() is None)
    assert until(site.finished)
    return {"what": f"{KILLS} kills; {begun} runs were begun by then, and the last one ended"}


def server_app_killed(site: Site) -> Record:
    """The run's process on the server is killed ten times, and the run is resumed each time."""
    rng, statuses = generator(0, "kills"), set[str]()
    for kill in range(KILLS):
        site.run(resuming(site))
        until(partial(in_round, site, 1 + kill // 2))
        time.sleep(rng.uniform(0.0, 10.0))
        if pid := site.server_app():
            send(pid, signal.SIGKILL)
            until(lambda: site.listed()[0]["status"].startswith("finished"), 120.0)
            statuses.add(site.listed()[0]["status"])
    if not site.finished():
        site.run(resuming(site))
    assert until(site.finished)
    return {"what": f"{KILLS} kills, resumed after each; status {', '.join(sorted(statuses))}"}


def in_round_2(site: Site, before: int) -> bool:
    """Whether a run is in its second round, after so many earlier ones."""
    return len(site.runs) > before and site.rounds() >= 1


def in_round(site: Site, server_round: int) -> bool:
    """Whether the ServerApp is in this round or a later one."""
    return site.server_app() is not None and site.rounds() >= server_round - 1


def resuming(site: Site) -> str:
    """What resumes the last run, if there is one."""
    return f"resume='{site.runs[-1].name}'" if site.runs else ""


def superlink_killed(site: Site) -> Record:
    """The SuperLink's process alone is killed after round 1 and started again."""
    return superlink_gone(site, lambda pid: send(pid, signal.SIGKILL))


def superlink_stopped(site: Site) -> Record:
    """The SuperLink is ended with all that it started, and started again."""
    return superlink_gone(site, lambda pid: site.servers["superlink"].end())


def superlink_gone(site: Site, end: Callable[[int], object]) -> Record:
    """What becomes of a run whose SuperLink ends after round 1 and is there again."""
    site.run()
    until(lambda: site.rounds() >= 1)
    pid = site.servers["superlink"].pid
    assert pid is not None
    end(pid)
    until(lambda: site.servers["superlink"].pid is None)
    began, rounds = time.monotonic(), site.rounds()
    site.up(NODES, [], insecure=True)
    alone = until(site.finished, 240.0)
    status = site.listed()[0]["status"]
    if not alone:
        site.run(resuming(site))
        assert until(site.finished)
    took = round(time.monotonic() - began)
    how = "went on by itself" if alone else f"stood still ({status}) until it was resumed"
    return {"what": f"after round {rounds} the run {how}; {took} s"}


def node_killed(site: Site, text: str, more: str = "") -> Record:
    """A SuperNode is killed when it gets its second message of this kind, and started again."""
    node = site.nodes["site-3"]
    site.run(more)
    until(lambda: node.log.read_text(errors="replace").count(text) >= 2)
    time.sleep(1.0)
    assert node.pid is not None
    os.kill(node.pid, signal.SIGKILL)
    killed_in = site.rounds() + 1
    site.up(NODES, [], insecure=True)
    assert until(site.finished)
    heard = {line["round"]: len(line["heard"]) for line in site.lines()}
    seconds = {line["round"]: round(line["seconds"]) for line in site.lines()}
    return {
        "what": f"in round {killed_in}; replies by round {list(heard.values())}, seconds "
        f"{list(seconds.values())}"
    }


def node_killed_in_training(site: Site) -> Record:
    """A SuperNode is killed while it trains in round 2, and started again."""
    return node_killed(site, "Receiving: train message")


def node_killed_in_evaluation(site: Site) -> Record:
    """A SuperNode is killed while it evaluates in round 2, and started again."""
    return node_killed(site, "Receiving: evaluate message", "fraction-evaluate=1.0")


CASES: dict[str, Callable[[Site], Record]] = {
    "nothing": uninterrupted,
    "flwr run": command_killed,
    "the ServerApp": server_app_killed,
    "the SuperLink": superlink_killed,
    "the SuperLink and its processes": superlink_stopped,
    "a SuperNode that trains": node_killed_in_training,
    "a SuperNode that evaluates": node_killed_in_evaluation,
}


def kills(
    cases: Annotated[str, typer.Option(help=f"Of: {', '.join(CASES)}.")] = ALL,
    out: command.Out = Path("outputs/kills"),
    table: command.TableOnly = False,
) -> None:
    """Kill, and print what happened."""
    out = out_folder(out)
    jobs = [
        Job({"killed": name, "nodes": NODES}, {"out": str(out)})
        for name in chosen("case", cases, CASES)
    ]
    run_all(jobs, measured, sentence, report, out, 1, table)


def measured(job: Job) -> Record:
    """What happened in one case."""
    name = str(job.what["killed"])
    folder = Path(str(job.settings["out"])) / "federations" / name.replace(" ", "-")
    with started(folder) as site:
        return {**CASES[name](site), "result": site.result(), "ended": site.finished()}


def sentence(record: Record) -> str:
    """One case in a few words."""
    return str(record["what"])


def report(records: list[Record], out: Path) -> None:
    """The cases in a table."""
    results = {record["killed"]: record["result"] for record in records}
    show(
        [
            {
                "killed": name,
                "what happened": record["what"],
                "result": "the same" if record["result"] == results.get("nothing") else "another",
            }
            for name in CASES
            for record in records
            if record["killed"] == name
        ]
    )
