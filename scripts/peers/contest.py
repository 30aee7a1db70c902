r"""All methods by name, what each was given, and one run of one of them.

Beyond the run config a method is given, whatever the federation and the seed:

- cflower, conventional FL, isolated training, FedPer, FedRep, FLUX, FEROMA and OCFL: nothing;
- the oracle: the groups; IFCA and CLoVE: their number;
- all others: their values in `TUNED`, which are the same for all federations of a data set.

The digits' values were chosen from ``scripts/results/peers-tuning.csv``, but for PACFL's and
FedDrift's. It has a line for each run, on a part of the families and mostly on seed 20 alone.
StoCFL's lines have no accuracy, because its groups follow from the first updates. Ditto's runs with
λ = 0.1 are

    F=rotation-2,label-permutation-4,dirichlet-rotation,no-groups-dirichlet-1,hundred-clients
    python scripts/run.py peers --methods ditto --given "strength=0.1" --families $F \
      --set "model='mlp'" --seeds 20-21 --out outputs/tuning-ditto-0.1
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from families.planted import honest, judge, truth_of
from records import Job, Record

from cflower.errors import ConfigError
from cflower.strategy.conditions import BEYOND_ROUNDS
from peers import (
    apfl,
    clove,
    feddrift,
    feroma,
    fine_tuning,
    flux,
    ifca,
    ocfl,
    of_fluke,
    own,
    pacfl,
    pfedme,
    plain,
    srfca,
    stocfl,
)
from peers.federation import Cost, Federation, Outcome


class Peer(NamedTuple):
    """A method of the literature."""

    run: Callable[..., Outcome]
    takes: Mapping[str, str] = {}
    """Its parameters, each with the name of its value in `TUNED`; k is the number of groups."""
    given: str = ""
    """What it is given beyond the run config, with the names of the values in braces."""
    decides: bool = False
    """Whether it decides something by the examples that the others' clients also train on."""


PEERS = {
    "federated": Peer(plain.federated),
    "isolated": Peer(plain.isolated),
    "true-groups": Peer(plain.true_groups, given="the true groups", decides=True),
    "ifca": Peer(ifca.run, {"k": "k"}, "k = {k:g}"),
    "ifca-restarts": Peer(partial(ifca.run, starts=5), {"k": "k"}, "k = {k:g}; best of 5 starts"),
    "pacfl": Peer(pacfl.run, {"alpha": "alpha"}, "alpha = {alpha:g} degrees; raw data vectors"),
    "flux": Peer(flux.run, given="latent means and deviations by class", decides=True),
    "feddrift": Peer(feddrift.run, {"delta": "delta"}, "delta = {delta:g}"),
    "srfca": Peer(srfca.run, {"near": "near"}, "lambda = {near:g}"),
    "stocfl": Peer(
        stocfl.run, {"tau": "tau", "strength": "prox"}, "tau = {tau:g}; lambda = {prox:g}"
    ),
    "ocfl": Peer(ocfl.run),
    "clove": Peer(clove.run, {"k": "k"}, "k = {k:g}"),
    "clove-any-k": Peer(clove.run_without_k, given="k at most 15"),
    "feroma": Peer(feroma.run, given="latent means and deviations by class, every round"),
    "fine-tuned": Peer(fine_tuning.run, {"epochs": "epochs"}, "epochs = {epochs:g}"),
    "apfl": Peer(apfl.run, {"alpha": "mixture"}, "alpha = {mixture:g}"),
    "pfedme": Peer(
        pfedme.run,
        {"strength": "envelope", "rate": "follow"},
        "lambda = {envelope:g}; eta lambda = {follow:g}; K = 5",
    ),
}
FLUKE = {
    **{
        f"fluke-{name.lower()}": Peer(partial(of_fluke.run, name=name))
        for name in ("FedROD", "FedPer", "LG-FedAvg")
    },
    "fluke-fedamp": Peer(
        partial(of_fluke.run, name="FedAMP", client={"lam": 0.02}, server={"sigma": 10.0}),
        given="lambda = 0.02; sigma = 10",
    ),
}
"""Methods by others' code, which needs an environment of its own."""
TUNED: dict[str, dict[str, float]] = {
    "digits": {
        "alpha": 12, "delta": 0.2, "near": 2, "tau": 0.35, "prox": 0.05,
        "strength": 0.01, "epochs": 25, "mixture": 0.5, "envelope": 0.03, "follow": 0.1,
    },
    "mnist": {
        "alpha": 20, "delta": 0.4, "near": 2, "tau": 0.35, "prox": 0.05,
        "strength": 0.1, "epochs": 10, "mixture": 0.5, "envelope": 0.03, "follow": 0.1,
    },
}  # fmt: skip
"""For each data set the values that made most federations exact, or accuracy highest, on seeds 20
and 21, which are not reported; others are tried with ``--given``. StoCFL's λ, ``prox``, is its
authors'; pFedMe's ηλ, ``follow``, was not varied. MNIST's values of SR-FCA, StoCFL, APFL and pFedMe
are those of the digits, its λ of Ditto and its epochs of fine-tuning those of a narrower grid."""
TUNED["fresh"] = TUNED["mnist"]  # most of them are of its images; nothing was tuned on them
GROUPLESS = (
    "federated", "isolated", "fedprox", "fedper", "ditto", "fine-tuned", "apfl", "pfedme", "fedrep",
    "feroma",
)  # fmt: skip
"""Methods that make no groups: nothing to be exact about."""
LONGER = " as long"
"""How the name of a method ends that has so many rounds that its clients train as often as
cflower's may at most."""
LOOPS = {
    "fedprox": "mu = {strength:g}",
    "ditto": "lambda = {strength:g}",
    "fedper": "",
    "fedrep": "",
}
"""Methods of cflower's app in which the clients train otherwise, and what they are given."""
OWN = ("cflower", "oracle", *LOOPS)
"""Methods that run through cflower's own apps."""
NAMES = (*OWN, *PEERS)
"""All with their own rounds; with `LONGER` after it a name of `PEERS` is a method, too."""
ALL_NAMES = (*NAMES, *FLUKE, *(name + LONGER for name in PEERS))


class Entry(NamedTuple):
    """A method as it is run on one federation."""

    run: Callable[[Mapping[str, Any]], tuple[dict[str, Any], Cost]]
    """From a run config to a summary, as far as `judge` reads it, and what the training cost."""
    given: str
    """What it was given beyond the run config; empty: nothing."""


def entry(method: str, data: str, right: int, tuned: Mapping[str, float] | None = None) -> Entry:
    """A method for a federation of a data set, with `right` true groups."""
    values = {**TUNED.get(data, TUNED["digits"]), "k": right, **(tuned or {})}
    if method in OWN:
        given = LOOPS.get(method, "the true groups" if method == "oracle" else "")
        pull = {"proximal-mu": values["strength"]} if method in LOOPS else {}
        return Entry(partial(own.run, method, more=pull), given.format(**values))
    peer = (PEERS | FLUKE)[method.removesuffix(LONGER)]
    parameters = {parameter: values[name] for parameter, name in peer.takes.items()}
    run = partial(in_process, partial(peer.run, **parameters), all_examples=not peer.decides)
    return Entry(run, peer.given.format(**values))


def job_of(
    data: str,
    family: str,
    method: str,
    seed: int,
    config: Mapping[str, Any],
    tuned: Mapping[str, float],
    out: Path,
) -> Job:
    """One run; what the method was given is a part of what the result depends on."""
    what = {"data": data, "family": family, "method": method, "seed": seed}
    if method.endswith(LONGER):
        rounds = rounds_as_long(what, config, out)
        config = {**config, "num-server-rounds": rounds}
    given = entry(method, data, len(set(truth_of(config).values())), tuned).given
    return Job(what, {**config, "given": given})


def rounds_as_long(what: Mapping[str, Any], config: Mapping[str, Any], out: Path) -> int:
    """Rounds with which a method's clients train as often as cflower lets its own at most.

    Never fewer than its own rounds, with which it has run; raises a ConfigError if it has not.
    """
    clients, rounds = config["min-available-nodes"], config["num-server-rounds"]
    most = (1 + BEYOND_ROUNDS) * rounds * max(1, round(config["fraction-train"] * clients))
    short = Job({**what, "method": what["method"].removesuffix(LONGER)}, {})
    path = out / f"{short.name}.json"
    if not path.exists():
        raise ConfigError(
            f"{short.name} has not run: a method{LONGER!r} needs its own trainings; run it first."
        )
    return max(rounds, round(rounds * most / json.loads(path.read_text())["trainings"]))


def compete(job: Job, tuned: Mapping[str, float]) -> Record:
    """The figures of one run."""
    config, method = dict(job.settings), job.what["method"]
    given, truth = config.pop("given"), truth_of(config)
    run = entry(method, job.what["data"], len(set(truth.values())), tuned).run
    summary, cost = run(config)
    clients = summary["clients"]
    clusters = {client["cluster"] for client in clients.values()}
    judged = judge({"clients": clients, "clusters": clusters, "splits": []}, {}, config)
    if method.removesuffix(LONGER) in (*GROUPLESS, *FLUKE):
        judged |= dict.fromkeys(("clusters", "exact", "adjusted_rand_index"))
    return {
        "groups": judged["groups"],
        "found": judged["clusters"],
        "exact": judged["exact"],
        "split_in": summary.get("split_in"),
        "bodies": summary.get("bodies"),
        "adjusted_rand_index": judged["adjusted_rand_index"],
        "accuracy": judged["accuracy"],
        "worst": min(clients[name]["accuracy"] for name in honest(config)),
        "names": honest(config),
        "clients": [(clients[c]["accuracy"], clients[c]["held_out"]) for c in honest(config)],
        **asdict(cost),
        "rounds": config["num-server-rounds"],
        "given": given,
    }


def in_process(
    run: Callable[[Federation], Outcome], config: Mapping[str, Any], all_examples: bool = False
) -> tuple[dict[str, Any], Cost]:
    """A run in this process: the summary of its end, and its cost."""
    federation = Federation(config, all_examples)
    began = time.process_time()
    outcome = run(federation)
    cost = federation.cost
    cost.server_seconds = time.process_time() - began - cost.client_seconds
    cost = Cost(**asdict(cost))  # the final evaluation is not the method's
    groups = outcome.groups or dict.fromkeys(federation.clients, 0)
    clients = {
        name: {
            "cluster": groups[name],
            "num_examples": len(data.train),
            "held_out": len(data.report),
            "accuracy": federation.measure(name, outcome.models[name], "report")["accuracy"],
        }
        for name, data in federation.clients.items()
    }
    return {"clients": clients}, cost
