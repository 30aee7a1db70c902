"""What `audit` measures: federations of generated clients with models of few weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

Array = NDArray[np.float64]
HELD_OUT = 12
"""Examples of a client that judge a split: a fifth of its 62."""
Kind = Literal["nothing to gain", "continuum", "planted", "few examples"]


@dataclass
class Quadratic:
    """f_i(w) = ‖w − c_i‖²/2: what a client's examples say is c_i, what is true of it is t_i."""

    optima: Array
    """c_i, shape (m, d)."""
    truth: Array
    """t_i, shape (m, d)."""
    noise: Array
    """Standard deviation of an update's entries, one a client, shape (m,)."""
    step: float | Array = 0.5
    """Share of the way to c_i; an array has the shape (d,), or (m, 1)."""

    def update(self, client: int, model: Array, rng: Generator) -> Array:
        """One step towards c_i, with noise."""
        step = np.broadcast_to(self.step, self.optima.shape)[client]
        noise = self.noise[client] * rng.normal(size=len(model))
        return step * (self.optima[client] - model) + noise

    def loss(self, client: int, model: Array, part: slice) -> float:
        """‖w − t_i‖²/2, of whatever examples."""
        return float(((model - self.truth[client]) ** 2).sum() / 2)


@dataclass
class Regression:
    """Linear or logistic regression on each client's own examples."""

    inputs: Array
    """Shape (m, n, k)."""
    targets: Array
    """Shape (m, n)."""
    fresh_inputs: Array
    fresh_targets: Array
    logistic: bool
    batch: int = 0
    """Examples a step; 0 for all."""
    steps: int = 5
    rate: float = 0.5

    def update(self, client: int, model: Array, rng: Generator) -> Array:
        """Some steps of (stochastic) gradient descent."""
        weights, x, y = model, self.inputs[client], self.targets[client]
        for _ in range(self.steps):
            pick = rng.permutation(len(y))[: self.batch] if self.batch else slice(None)
            output = x[pick] @ weights
            error = (expit(output) if self.logistic else output) - y[pick]
            weights = weights - self.rate * x[pick].T @ error / len(error)
        return weights - model

    def loss(self, client: int, model: Array, part: slice) -> float:
        """Mean squared error or mean log loss of some examples that no update has seen."""
        output, target = self.fresh_inputs[client, part] @ model, self.fresh_targets[client, part]
        if not self.logistic:
            return float(((output - target) ** 2).mean())
        return float((np.logaddexp(0, output) - target * output).mean())


@dataclass
class Bigrams:
    """Logits of the next character given the one before; the pair i, j of 40 is number 40 i + j."""

    inputs: Array  # shape (m, n, pairs)
    fresh_inputs: Array

    def update(self, client: int, model: Array, rng: Generator) -> Array:
        """Five steps of gradient descent."""
        counts = np.bincount(self.inputs[client].ravel(), minlength=1600).reshape(40, 40)
        logits = model.reshape(40, 40)
        for _ in range(5):
            expected = counts.sum(axis=1, keepdims=True) * softmax(logits, axis=1)
            logits = logits + 10 * (counts - expected) / counts.sum()
        return np.asarray(logits.ravel() - model)

    def loss(self, client: int, model: Array, part: slice) -> float:
        """Mean log loss of some examples that no update has seen."""
        logs = log_softmax(model.reshape(40, 40), axis=1).ravel()
        return float(-logs[self.fresh_inputs[client, part]].mean())


@dataclass
class Federation:
    """Generated clients, and who takes part when."""

    clients: Quadratic | Regression | Bigrams
    groups: Array
    """The true group of every client, shape (m,); -1: not judged."""
    dim: int
    sizes: Array | None = None
    """Examples of every client, shape (m,)."""
    present: Callable[[int, Generator], Array] | None = None
    """Round, counted from 1, to which clients take part, shape (m,)."""
    start: Array | None = None
    rounds: int = 50
    held_out: int = HELD_OUT
    """Fresh examples of a client that judge a split."""


def some(m: int, share: float) -> Callable[[int, Generator], Array]:
    """A share of the clients each round, by chance."""
    return lambda _, rng: rng.permutation(m) < max(1, round(share * m))


def alternate(m: int) -> Callable[[int, Generator], Array]:
    """Even clients in even rounds, odd ones in odd rounds."""
    return lambda server_round, _: np.arange(m) % 2 == server_round % 2


def own_optima(
    rng: Generator, m: int, d: int = 20, rank: int = 0, noise: float = 0.05, **changed: Any
) -> Federation:
    """One concept; few examples put every client's optimum beside it, in ``rank`` directions.

    ``changed`` are fields of the federation.
    """
    optima = rng.normal(size=(m, rank or d))
    if rank:
        optima = optima @ np.linalg.qr(rng.normal(size=(d, rank)))[0].T
    quadratic = Quadratic(optima, np.zeros((m, d)), np.full(m, noise))
    start = rng.normal(size=d)
    start *= 2 * np.sqrt(rank or d) / np.linalg.norm(start)
    return replace(Federation(quadratic, np.zeros(m), d, start=start), **changed)


def far_client(rng: Generator, m: int, times: float) -> Federation:
    """Every client is its own concept, and one lies many times as far off as the others."""
    optima = rng.normal(size=(m, 20))
    optima[0] *= times
    return concepts_of_their_own(optima)


def concepts_of_their_own(optima: Array) -> Federation:
    """Every client is its own concept; ``optima`` has the shape (m, 20)."""
    m, d = optima.shape
    return Federation(Quadratic(optima, optima, np.full(m, 0.05)), np.zeros(m), d)


def own_noise(rng: Generator, m: int, d: int) -> Federation:
    """One optimum, and noise of a log-normal(2) size of its own for every client."""
    noise = 0.1 * np.exp(2 * rng.normal(size=m))
    quadratic = Quadratic(np.zeros((m, d)), np.zeros((m, d)), noise)
    return Federation(quadratic, np.zeros(m), d, start=rng.normal(size=d))


def oscillating(rng: Generator, m: int, factor: float) -> Federation:
    """A model that overshoots along one direction, and clients that see only one of its ends."""
    first = np.arange(20) == 0
    federation = own_optima(rng, m, start=np.where(first, 10.0, 0.0), present=alternate(m))
    federation.clients.step = np.where(first, 1 + factor, 0.5)
    return federation


def copies(rng: Generator, m: int, count: int) -> Federation:
    """Some clients are one client under several names."""
    federation = own_optima(rng, m, noise=0.0)
    federation.clients.optima[:count] = federation.clients.optima[0]
    return federation


def regression(
    rng: Generator,
    m: int,
    k: int,
    *,
    logistic: bool = False,
    prior: float = 0.0,
    batch: int = 0,
    concepts: int = 1,
    n: int = 50,
    rate: float = 0.5,
) -> Federation:
    """Examples each: n, and 500 fresh; ``prior`` b: a client's share of label 1 is Beta(b, b)."""
    fresh, groups = 500, np.arange(m) % concepts
    if logistic:
        share = rng.beta(prior, prior, m) if prior else np.full(m, 0.5)
        targets = (rng.random((m, n + fresh)) < share[:, None]).astype(float)
        means = rng.normal(size=(concepts, k))
        means *= 1.5 / np.linalg.norm(means, axis=1, keepdims=True)
        inputs = rng.normal(size=(m, n + fresh, k))
        inputs += (2 * targets - 1)[:, :, None] * means[groups][:, None, :]
        inputs = np.concatenate([inputs, np.ones((m, n + fresh, 1))], axis=2)
    else:
        inputs = rng.normal(size=(m, n + fresh, k))
        truth = rng.normal(size=(concepts, k))[groups]
        targets = np.einsum("mnk,mk->mn", inputs, truth) + rng.normal(size=(m, n + fresh))
    clients = Regression(
        inputs[:, :n], targets[:, :n], inputs[:, n:], targets[:, n:], logistic, batch, rate=rate
    )
    d = inputs.shape[2]
    return Federation(clients, groups, d, start=np.zeros(d), held_out=round(n / 4))


def table(rng: Generator, name: str, m: int, n: int, columns: int = 0) -> Federation:
    """A real table of scikit-learn's, dealt out at random: n rows each, the others are fresh.

    Columns have mean 0 and standard deviation 1; wine's task is its first kind against the others.
    """
    from sklearn import datasets

    inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    logistic = name != "diabetes"
    targets = (targets == 0) if logistic else (targets - targets.mean()) / targets.std()
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    inputs = np.c_[inputs[:, : columns or None], np.ones(len(inputs))]
    rows = rng.permutation(len(inputs))
    train = rows[: m * n].reshape(m, n)
    fresh = np.array([rng.permutation(rows[m * n :]) for _ in range(m)])
    data = (part[index] for index in (train, fresh) for part in (inputs, targets.astype(float)))
    clients = Regression(*data, logistic, rate=0.1)
    return Federation(clients, np.zeros(m), inputs.shape[1], start=np.zeros(inputs.shape[1]))


def languages(rng: Generator, folder: Path, size: int = 64) -> Federation:
    """Five of 14 languages, 20 clients each; an example is 64 characters from any page."""
    pages = pd.read_parquet(folder / "train.parquet").groupby("language")["text"]
    texts = ["".join(rng.permutation(pages.get_group(name))) for name in rng.permutation(14)[:5]]
    characters = np.array([list(text.lower()[: 20 * 64 * size]) for text in texts])
    _, places, counts = np.unique(characters, return_inverse=True, return_counts=True)
    tokens = np.minimum(np.argsort(np.argsort(-counts)), 39)[places].reshape(5, 20 * 64, size)
    tokens = rng.permutation(tokens, axis=1).reshape(5, 20, 64, size).swapaxes(0, 1)
    pairs = (40 * tokens[..., :-1] + tokens[..., 1:]).reshape(100, 64, size - 1)
    clients = Bigrams(pairs[:, :14], pairs[:, 14:])
    return Federation(clients, np.arange(100) % 5, 1600, rounds=24, held_out=4)


def planted(
    rng: Generator,
    sizes: tuple[int, ...],
    d: int = 20,
    spread: float = 0.1,
    noise: float = 0.05,
    share: float = 1.0,
) -> Federation:
    """Groups of clients, each with its concept; their own optima lie around it."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    truth = rng.normal(size=(len(sizes), d))[groups]
    optima = truth + spread * rng.normal(size=truth.shape)
    federation = Federation(Quadratic(optima, truth, np.full(len(groups), noise)), groups, d)
    if share < 1:
        federation.present, federation.rounds = some(len(groups), share), 150
    return federation


def leaver(rng: Generator, length: float) -> Federation:
    """Eight clients in two groups; a ninth sends two updates of noise and is never heard again."""
    federation = planted(rng, (4, 4))
    optima = np.vstack([federation.clients.optima, np.zeros(20)])
    noise = np.r_[np.full(8, 0.05), length / np.sqrt(20)]
    step = np.r_[np.full(8, 0.5), 0.0][:, None]
    return Federation(
        Quadratic(optima, optima, noise, step),
        np.r_[federation.groups, -1],
        20,
        present=lambda server_round, _: np.arange(9) < (9 if server_round <= 2 else 8),
    )


def mixture(rng: Generator, m: int) -> Federation:
    """Each client mixes two concepts, in a share of its own."""
    share, ends = rng.random((m, 1)), rng.normal(size=(2, 20))
    optima = share * ends[0] + (1 - share) * ends[1]
    return concepts_of_their_own(optima + 0.1 * rng.normal(size=(m, 20)))


def circle(rng: Generator, m: int) -> Federation:
    """Concepts at angles 0 to 360° in a plane."""
    angle = rng.uniform(0, 2 * np.pi, m)
    plane = np.linalg.qr(rng.normal(size=(20, 2)))[0].T
    optima = 3 * np.c_[np.cos(angle), np.sin(angle)] @ plane
    return concepts_of_their_own(optima + 0.1 * rng.normal(size=(m, 20)))


Maker = Callable[[Generator], Federation]
linear = partial(regression, m=10)
logistic = partial(regression, logistic=True)

NOTHING_TO_GAIN: dict[str, Maker] = {
    **{f"linreg {k} features": partial(linear, k=k) for k in (1, 2, 3, 5)},
    "linreg 2 features, SGD": partial(linear, k=2, batch=10),
    "linreg 2 features, 5 clients": partial(regression, m=5, k=2),
    **{f"linreg 5 features, {m} clients": partial(regression, m=m, k=5) for m in (3, 4)},
    **{f"logistic {k} features": partial(logistic, m=10, k=k) for k in (2, 5, 10)},
    **{
        f"{data}, {columns or 'all'} columns, {m} clients": partial(
            table, name=data, m=m, n=n, columns=columns
        )
        for data, m, n in (("breast_cancer", 10, 40), ("wine", 5, 20), ("diabetes", 10, 30))
        for columns in (0, 2)
    },
    **{f"own optima, {m} clients": partial(own_optima, m=m) for m in (3, 4)},
    **{
        f"own optima, rank {rank}, {m} clients": partial(own_optima, m=m, d=50, rank=rank)
        for rank in (1, 2, 3, 10)
        for m in (10, 20)
    },
    **{
        f"own optima, {share:.0%} a round": partial(own_optima, m=20, present=some(20, share))
        for share in (0.2, 0.5)
    },
    **{
        f"own optima, 1000 clients, {share:.0%} a round": partial(
            own_optima, m=1000, present=some(1000, share)
        )
        for share in (0.1, 0.02)
    },
    "alternating, own optima": partial(own_optima, m=10, present=alternate(10)),
    **{f"alternating, x-{f:g}": partial(oscillating, m=10, factor=f) for f in (0.95, 1.0)},
    # The model begins at the common optimum.
    **{f"warm start, d={d}": partial(own_optima, m=10, d=d, start=np.zeros(d)) for d in (2, 3, 5)},
    **{
        f"one client of {n} x the examples": partial(own_optima, m=10, sizes=np.r_[n, np.ones(9)])
        for n in (10, 100)
    },
    **{f"own noise, {m} clients": partial(own_noise, m=m, d=50) for m in (3, 4)},
    **{f"own noise, d={d}": partial(own_noise, m=10, d=d) for d in (2, 50)},
    "3 copies": partial(copies, m=10, count=3),
}
CONTINUUM: dict[str, Maker] = {
    **{
        f"logistic {k} features, {name}": partial(logistic, k=k, m=m, prior=prior, batch=batch)
        for k in (2, 5, 10)
        for name, m, prior, batch in (
            ("Beta(1,1)", 10, 1.0, 0),
            ("Beta(.5,.5), 20 clients", 20, 0.5, 0),
            ("Beta(.5,.5), 20 clients, SGD", 20, 0.5, 10),
        )
    },
    **{f"one client {n} x as far": partial(far_client, m=10, times=n) for n in (3, 5, 10)},
    "mixtures of two": partial(mixture, m=20),
    **{f"angles 0-360, {m} clients": partial(circle, m=m) for m in (10, 20)},
}
PLANTED: dict[str, Maker] = {
    **{
        f"{count}x5 groups, d={d}": partial(planted, sizes=(5,) * count, d=d)
        for count in (2, 4)
        for d in (1, 2, 3, 5)
    },
    **{f"{n} groups of 2": partial(planted, sizes=(2,) * n, d=50) for n in (10, 20)},
    **{
        ":".join(map(str, sizes)): partial(planted, sizes=sizes)
        for sizes in ((2, 2), (2, 2, 2), (95, 5), (18, 2), (9, 1), (36, 2, 2), (4, 4, 4))
    },
    "18:2, own optima 0.5": partial(planted, sizes=(18, 2), spread=0.5),
    "3x10, own optima 1, d=50": partial(planted, sizes=(10,) * 3, d=50, spread=1.0),
    **{f"2x10, {s:.0%} a round": partial(planted, sizes=(10, 10), share=s) for s in (0.1, 0.5)},
    **{
        f"4x250, {share:.0%} a round": partial(
            planted, sizes=(250,) * 4, d=50, spread=0.3, noise=0.5, share=share
        )
        for share in (0.1, 0.02)
    },
    "linreg, 2 concepts": partial(linear, k=5, batch=10, concepts=2),
    "logistic, 2 concepts": partial(logistic, m=10, k=5, batch=10, concepts=2),
    **{f"4:4 and a leaver, noise {n:g}": partial(leaver, length=n) for n in (0.1, 0.5)},
}
FAMILIES: dict[str, tuple[Kind, Maker]] = {
    **{name: ("nothing to gain", maker) for name, maker in NOTHING_TO_GAIN.items()},
    **{name: ("continuum", maker) for name, maker in CONTINUUM.items()},
    **{name: ("planted", maker) for name, maker in PLANTED.items()},
}
EVERY = FAMILIES | {
    "linear regression": ("few examples", partial(linear, m=100, k=10, concepts=5, n=14, rate=0.1)),
    "languages": ("few examples", languages),
}
