"""What `bench.py` measures under the real `flwr run`: start-up, and rounds once all is warm.

Two apps are made for comparison: ``nothing``, whose clients answer at once, and ``quickstart``, in
the shape of Flower's PyTorch quickstart: train and evaluate are messages of their own, and each
loads its partition and makes its DataLoaders anew. Model, data and training are cflower's.
"""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

from flower_app import pyproject

from benchmarks.clients import BareLoop
from benchmarks.measure import Figure

PROJECT = Path(__file__).parents[2]
CORES = os.cpu_count() or 1
ROUNDS = 6
REPETITIONS = 2
CLIENTS = (10, 100)

SERVER = """\
import time
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from bench_app.model import Net

app = ServerApp()

class Timed(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        with open(self.marks, "a") as file:
            print(time.time(), file=file)
        return super().configure_train(server_round, arrays, config, grid)

@app.main()
def main(grid, context):
    keys = context.run_config
    strategy = Timed(fraction_evaluate={evaluate}, min_available_nodes=keys["clients"])
    strategy.marks = keys["marks"]
    arrays = ArrayRecord(Net().state_dict())
    strategy.start(grid, arrays, num_rounds=keys["rounds"])
"""

MODEL = """\
from cflower.learning.models import build_model

def Net():
    return build_model("cnn", (1, 8, 8), 10, seed=0)
"""

NOTHING = """\
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    metrics = MetricRecord({"num-examples": 1})
    arrays = message.content["arrays"]
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""

QUICKSTART = """\
import torch
from datasets import Array2D, Dataset, Features, Value
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_datasets.partitioner import IidPartitioner
from torch.utils.data import DataLoader
from torchvision.transforms import ToTensor
from cflower.data.sources import load_source
from bench_app.model import Net

app = ClientApp()
partitioner = None

def transform(batch):
    batch["image"] = [ToTensor()(image) for image in batch["image"]]
    return batch

def load_data(context):
    global partitioner
    if partitioner is None:
        partitioner = IidPartitioner(context.node_config["num-partitions"])
        digits = load_source("digits").examples()
        features = Features(image=Array2D((8, 8), "float32"), label=Value("int64"))
        columns = {"image": list(digits.inputs[:, 0]), "label": digits.labels}
        partitioner.dataset = Dataset.from_dict(columns, features=features)
    part = partitioner.load_partition(context.node_config["partition-id"])
    part = part.train_test_split(test_size=0.2, seed=42).with_transform(transform)
    train = DataLoader(part["train"], batch_size=32, shuffle=True)
    return train, DataLoader(part["test"], batch_size=32)

def prepare(message, context):
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    return model.to(device), device, *load_data(context)

@app.train()
def train(message, context):
    model, device, loader, _ = prepare(message, context)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    running = 0.0
    for _ in range(3):
        for batch in loader:
            images, labels = batch["image"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
    metrics = MetricRecord({"train_loss": running, "num-examples": len(loader.dataset)})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    model, device, _, loader = prepare(message, context)
    criterion = torch.nn.CrossEntropyLoss()
    model.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for batch in loader:
            images, labels = batch["image"].to(device), batch["label"].to(device)
            outputs = model(images)
            loss += criterion(outputs, labels).item()
            right += (torch.max(outputs.data, 1)[1] == labels).sum().item()
    size = len(loader.dataset)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": right / size, "num-examples": size})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""


def under_flower(quick: bool) -> Iterator[Figure]:
    """Start-up and steady rounds of cflower, the quickstart and an app that does nothing."""
    repetitions = 1 if quick else REPETITIONS
    with superlink() as (environment, folder):
        for clients in (2,) if quick else CLIENTS:
            first: dict[str, list[float]] = {}
            rounds: dict[str, list[float]] = {}
            for _ in range(repetitions):
                for app in ("cflower", "quickstart", "nothing"):
                    start, steady = run_app(app, clients, environment, folder)
                    first.setdefault(app, []).append(start)
                    rounds.setdefault(app, []).extend(steady)
                rounds.setdefault("bare", []).extend(rounds_on_all_cores(clients))
            begun = {app: median(seconds) for app, seconds in first.items()}
            took = {app: median(seconds) for app, seconds in rounds.items()}
            least = took["bare"] + took["nothing"]
            what = f"round of `flwr run`, digits, {clients} clients"
            yield on_the_clock(
                what, f"bare loop on {CORES} cores + nothing", took["cflower"], least, 1.25
            )
            yield on_the_clock(what, "quickstart", took["cflower"], took["quickstart"], 2, True)
            what = f"`flwr run` to the end of round 1, {clients} clients"
            yield on_the_clock(what, "quickstart", begun["cflower"], begun["quickstart"], 1)
            yield on_the_clock(
                f"round of an app that does nothing, {clients} clients",
                "round of cflower",
                took["nothing"],
                took["cflower"],
                1,
            )


def on_the_clock(
    name: str, against: str, ours: float, theirs: float, goal: float, at_least: bool = False
) -> Figure:
    """A figure of seconds on the clock; with ``at_least``, of how many times faster ours is."""
    ratio = theirs / ours if at_least else ours / theirs
    return Figure(name, against, ours, theirs, ratio, goal, at_least, unit="s")


@contextmanager
def superlink() -> Iterator[tuple[dict[str, str], Path]]:
    """A SuperLink of our own: its environment, and a folder for apps and marks."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        home = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "FLWR_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1"]
        with (home / "superlink.log").open("w") as log:
            link = subprocess.Popen(
                [*command, "--port", str(port)], env=environment, cwd=home, stdout=log, stderr=log
            )
            try:
                deadline = time.monotonic() + 60
                while socket.socket().connect_ex(("127.0.0.1", port)):
                    if time.monotonic() > deadline or link.poll() is not None:
                        raise RuntimeError((home / "superlink.log").read_text())
                    time.sleep(0.2)
                yield environment, home
            finally:
                link.terminate()
                link.wait(30)


def run_app(
    app: str, clients: int, environment: dict[str, str], folder: Path
) -> tuple[float, list[float]]:
    """Seconds from `flwr run` to the end of the first round, and those of every round after it.

    To its end, because cflower has its clients' workers started and data loaded before it, for
    the roll call, and the quickstart in it.
    """
    marks = folder / "marks"
    marks.unlink(missing_ok=True)
    config = f"rounds={ROUNDS} clients={clients} marks='{marks}'"
    source = folder / app
    if app == "cflower":
        source = PROJECT
        config = (
            f"num-server-rounds={ROUNDS} min-available-nodes={clients} output-dir='{folder}/runs' "
            "node-timeout=600.0"
        )
    elif not source.exists():
        write_app(app, source)
    federation = f"num-supernodes={clients} client-resources-num-cpus=1"
    command = ["flwr", "run", str(source), "bench", "--stream", "-c", config]
    began = time.time()
    done = subprocess.run(
        [*command, "--federation-config", federation],
        env=environment,
        capture_output=True,
        text=True,
    )
    if app == "cflower":
        written = sorted((folder / "runs").glob("*/rounds.jsonl"), key=lambda f: f.stat().st_mtime)
        if not written:
            raise RuntimeError(done.stdout + done.stderr)
        newest = written[-1].parent
        # The clients' facts are written when all is ready, right before the first round.
        starts = [(newest / "clients.json").stat().st_mtime]
        lines = (newest / "rounds.jsonl").read_text().splitlines()
        seconds = {line["round"]: line["seconds"] for line in map(json.loads, lines)}
        return starts[0] + seconds[1] - began, [seconds[i] for i in range(2, ROUNDS + 1)]
    if not marks.exists():
        raise RuntimeError(done.stdout + done.stderr)
    times = [float(line) for line in marks.read_text().split()]
    return times[1] - began, [after - before for before, after in pairwise(times)][1:]


def write_app(name: str, folder: Path) -> None:
    """Make one of the two apps."""
    package = folder / "bench_app"
    package.mkdir(parents=True)
    config = {"rounds": ROUNDS, "clients": CLIENTS[0], "marks": ""}
    (folder / "pyproject.toml").write_text(
        pyproject(f"bench-{name}", "bench_app.server:app", "bench_app.client:app", config)
    )
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(MODEL)
    evaluate = "1.0" if name == "quickstart" else "0.0"
    (package / "server.py").write_text(SERVER.replace("{evaluate}", evaluate))
    (package / "client.py").write_text(QUICKSTART if name == "quickstart" else NOTHING)


def rounds_on_all_cores(clients: int) -> list[float]:
    """Seconds of rounds of the bare loop, its clients dealt out to as many processes as cores."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(CORES, mp_context=context) as pool:
        barrier = manager.Barrier(CORES)
        shares = [pool.submit(share_of_rounds, clients, i, barrier) for i in range(CORES)]
        return [max(seconds) for seconds in zip(*(s.result() for s in shares), strict=True)]


def share_of_rounds(clients: int, share: int, barrier: object) -> list[float]:
    """One process's seconds for its clients in each of the rounds."""
    loop = BareLoop(clients)
    loop.clients = loop.clients[share::CORES]
    loop.round()
    found = []
    for _ in range(ROUNDS - 1):
        barrier.wait()  # type: ignore[attr-defined]
        began = time.perf_counter()
        loop.round()
        found.append(time.perf_counter() - began)
    return found
