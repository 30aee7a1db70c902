"""Run folders made up for tests, in the format that `cflower.runs.folder` writes."""

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cflower.algorithm.criteria import Outcome
from cflower.config import RunConfig

SPLIT_AT = 0.3
"""Share of the rounds after which the root is split in half."""


def made_up_run(
    path: Path,
    clients: int = 8,
    rounds: int = 20,
    *,
    name: str = "client-{}",
    classes: tuple[str, ...] = ("a", "b", "c"),
    refused: int = 2,
    finished: bool = True,
    data: bool = True,
    problems: bool = True,
    baselines: Mapping[str, float] | None = None,
    **keys: Any,
) -> Path:
    """Two groups that are told apart: the root is split once, its children stay.

    Parameters
    ----------
    path : Path
        The run folder to write.
    name : str
        Of a client, with its number.
    refused : int
        Rounds before the split in which the sides were not apart enough.
    baselines : mapping of str to float, optional
        What each client has under the baselines that were measured.
    **keys
        Run-config fields.
    """
    rng = np.random.default_rng(0)
    path.mkdir(parents=True)
    (path / "similarity").mkdir()
    names = [name.format(i) for i in range(clients)]
    half = clients // 2
    sides = {"0.0": names[:half], "0.1": names[half:]}
    split = max(refused + 1, round(SPLIT_AT * rounds))
    thresholds = {"split_criterion": "norms", "eps1": 0.9, "eps2": 1.6, "gamma_max": 0.68}
    config = RunConfig(num_server_rounds=rounds, **thresholds | keys).as_keys()
    write(path / "config.json", {"config": config, "versions": {"cflower": "0"}, "seed": 0})
    lines = []
    for server_round in range(1, rounds + 1):
        for cluster, members in sides.items() if server_round > split else [("0", names)]:
            lines.append(line(server_round, cluster, members, split, refused, rng, problems))
            if lines[-1]["alpha_cross"] is not None:
                matrix = np.full((clients, clients), -0.4) + rng.normal(0, 0.05, (clients, clients))
                matrix[:half, :half] += 0.9
                matrix[half:, half:] += 0.9
                matrix = np.clip((matrix + matrix.T) / 2, -1, 1)
                np.fill_diagonal(matrix, 1)
                np.savez(
                    path / "similarity" / f"{server_round}-{cluster}.npz",
                    similarity=matrix,
                    clients=np.array(names),
                )
    (path / "rounds.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    tree = {"0": node(names, ["0.0", "0.1"], 0, split, [])}
    tree |= {child: node(side, [], split, None, side) for child, side in sides.items()}
    write(path / "tree.json", {"clusters": tree, "walking": {}})
    told = summary(path.name, lines, sides, split, rounds, finished)
    if baselines is not None:
        told["baselines"] = {
            key: {"accuracy": value, "rounds": rounds, "clients": dict.fromkeys(names, value)}
            for key, value in baselines.items()
        }
    write(path / "summary.json", told)
    if data:
        image = {
            "sample_images": b64encode(bytes(range(64)) * 2).decode(),
            "sample_shape": [8, 8, 1],
            "sample_labels": [0, 1],
        }
        told = {n: {"label_counts": [3, 2, 1][: len(classes)], **image} for n in names}
        write(path / "clients.json", {"class_names": list(classes), "clients": told})
    return path


def line(
    server_round: int,
    cluster: str,
    members: list[str],
    split: int,
    refused: int,
    rng: np.random.Generator,
    problems: bool,
) -> dict[str, Any]:
    """One line of ``rounds.jsonl``."""
    outcome, alpha = Outcome.MOVING, None
    if server_round > split:
        outcome = Outcome.CONTENT
    elif server_round == split:
        outcome, alpha = Outcome.SPLIT, -0.3
    elif server_round >= split - refused:
        outcome, alpha = Outcome.NOT_APART, 0.2
    accuracy = 0.9 - 0.4 / server_round
    told = {
        name: {"accuracy": accuracy + float(rng.uniform(-0.1, 0.1)), "loss": 0.5, "train-loss": 0.1}
        for name in members
    }
    silent = {members[0]: "did not come within 60 s"} if problems and server_round == 3 else {}
    for name in silent:
        del told[name]
    return {
        "round": server_round,
        "cluster": cluster,
        "members": members,
        "heard": list(told),
        "mean_norm": 0.5 if alpha is not None or server_round > split else 2 / server_round + 1,
        "max_norm": 1.0 if server_round > split else 3.0,
        "alpha_cross": alpha,
        "decision": outcome.value,
        "reason": f"for reasons of round {server_round}",
        "figures": {},
        "metrics": {"accuracy": accuracy, "loss": 0.5},
        "clients": told,
        "problems": silent,
        "seconds": 0.1,
    }


def node(
    members: list[str], children: list[str], born: int, split: int | None, edge: list[str]
) -> dict[str, Any]:
    """One cluster of ``tree.json``."""
    return {
        "members": members,
        "children": children,
        "born": born,
        "split_round": split,
        "edge_clients": edge,
    }


def summary(
    run_id: str,
    lines: list[dict[str, Any]],
    sides: dict[str, list[str]],
    split: int,
    rounds: int,
    finished: bool,
) -> dict[str, Any]:
    """``summary.json``."""
    clients = {
        name: {"cluster": cluster, "accuracy": 0.9 + 0.001 * (i % 50)}
        | {"num_examples": 10.0 + i, "held_out": 20.0}
        | ({"fl_accuracy": 0.7 + 0.3 * (i % 7 == 3)} if finished else {})
        for cluster, members in sides.items()
        for i, name in enumerate(members)
    }
    return {
        "run_id": run_id,
        "finished": finished,
        "rounds": rounds,
        "seed": 0,
        "clusters": sides,
        "splits": [
            {"round": split, "cluster": "0", "children": list(sides)}
            | {"alpha_cross": -0.3, "mean_norm": 0.5, "max_norm": 3.0}
        ],
        "clients": clients,
        "metrics": {"accuracy": 0.91, "fl_accuracy": 0.74} if finished else {},
        "groups": {n: int(c == "0.1") for c, side in sides.items() for n in side},
        "adjusted_rand_index": 1.0,
    }


def write(path: Path, content: Any) -> None:
    """JSON into a file."""
    path.write_text(json.dumps(content))
