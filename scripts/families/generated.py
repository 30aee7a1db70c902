"""What `audit` measures: federations of generated clients with models of few weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]
HELD_OUT = 12
"""Examples of a client that judge a split: a fifth of its 62."""
DataSpec = Literal["planted", "nothing to gain", "continuum"]


class Clients(Protocol):
    """What clients learn from: their updates, and how well a model serves them."""

    def update(self, client: int, model: Array, rng: Generator) -> Array:
        """Δ_i after local training from a model, shape (d,)."""

    def loss(self, client: int, model: Array) -> float:
        """Of a model on the client's fresh examples, which no update has seen."""

    def held_out(self, client: int, model: Array) -> tuple[float, int]:
        """Loss on examples that the client holds out to judge a split by, and their number."""


@dataclass
class Quadratic:
    """f_i(w) = ‖w − c_i‖²/2: what a client's examples say is c_i, what is true of it is t_i."""

    optima: Array
    """c_i, shape (m, d)."""
    truth: Array
    """t_i, shape (m, d)."""
    noise: Array
    """Standard deviation of an update's entries, one a client, shape (m,)."""
    step: Array = field(default_factory=lambda: np.array(0.5))

    def update(self, client: int, model: Array, rng: Generator) -> Array:
        """One step towards c_i, with noise."""
        step = self.step * (self.optima[client] - model)
        return step + self.noise[client] * rng.normal(size=len(model))

    def loss(self, client: int, model: Array) -> float:
        """‖w − t_i‖²/2."""
        return float(((model - self.truth[client]) ** 2).sum() / 2)

    def held_out(self, client: int, model: Array) -> tuple[float, int]:
        """As if they were honest."""
        return self.loss(client, model), HELD_OUT


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

    def loss(self, client: int, model: Array) -> float:
        """Mean squared error, or mean log loss."""
        return self._loss(self.fresh_inputs[client], self.fresh_targets[client], model)

    def held_out(self, client: int, model: Array) -> tuple[float, int]:
        """The same of the first few of the fresh examples."""
        inputs, targets = self.fresh_inputs[client], self.fresh_targets[client]
        return self._loss(inputs[:HELD_OUT], targets[:HELD_OUT], model), HELD_OUT

    def _loss(self, inputs: Array, target: Array, model: Array) -> float:
        output = inputs @ model
        if not self.logistic:
            return float(((output - target) ** 2).mean())
        return float((np.logaddexp(0, output) - target * output).mean())


@dataclass
class Federation:
    """Generated clients, and who takes part when."""

    clients: Clients
    groups: Array
    """The true group of every client, shape (m,); -1: not judged."""
    dim: int
    sizes: Array | None = None
    """Examples of every client, shape (m,)."""
    present: Callable[[int, Generator], Array] | None = None
    """Round, counted from 1, to which clients take part, shape (m,)."""
    start: Array | None = None
    rounds: int = 50


def some(m: int, share: float) -> Callable[[int, Generator], Array]:
    """A share of the clients each round, by chance."""
    return lambda _, rng: rng.permutation(m) < max(1, round(share * m))


def alternate(m: int) -> Callable[[int, Generator], Array]:
    """Even clients in even rounds, odd ones in odd rounds."""
    return lambda server_round, _: np.arange(m) % 2 == server_round % 2


def own_optima(rng: Generator, m: int, d: int, rank: int = 0, noise: float = 0.05) -> Federation:
    """One concept; few examples put every client's optimum beside it, in ``rank`` directions."""
    optima = rng.normal(size=(m, rank or d))
    if rank:
        optima = optima @ np.linalg.qr(rng.normal(size=(d, rank)))[0].T
    quadratic = Quadratic(optima, np.zeros((m, d)), np.full(m, noise))
    start = rng.normal(size=d)
    start *= 2 * np.sqrt(rank or d) / np.linalg.norm(start)
    return Federation(quadratic, np.zeros(m), d, start=start)


def warm(rng: Generator, m: int, d: int) -> Federation:
    """The model begins at the common optimum."""
    federation = own_optima(rng, m, d)
    federation.start = np.zeros(d)
    return federation


def big_client(rng: Generator, m: int, times: float) -> Federation:
    """One client has many times the examples of the others."""
    federation = own_optima(rng, m, 20)
    federation.sizes = np.r_[times, np.ones(m - 1)]
    return federation


def far_client(rng: Generator, m: int, times: float) -> Federation:
    """Every client is its own concept, and one lies many times as far off as the others."""
    optima = rng.normal(size=(m, 20))
    optima[0] *= times
    return Federation(Quadratic(optima, optima, np.full(m, 0.05)), np.zeros(m), 20)


def own_noise(rng: Generator, m: int, d: int) -> Federation:
    """One optimum, and noise of a log-normal(2) size of its own for every client."""
    noise = 0.1 * np.exp(2 * rng.normal(size=m))
    quadratic = Quadratic(np.zeros((m, d)), np.zeros((m, d)), noise)
    return Federation(quadratic, np.zeros(m), d, start=rng.normal(size=d))


def oscillating(rng: Generator, m: int, factor: float) -> Federation:
    """A model that overshoots along one direction, and clients that see only one of its ends."""
    federation = own_optima(rng, m, 20)
    federation.clients.step = np.where(np.arange(20) == 0, 1 + factor, 0.5)
    federation.start = np.where(np.arange(20) == 0, 10.0, 0.0)
    federation.present = alternate(m)
    return federation


def alternating(rng: Generator, m: int) -> Federation:
    """Even clients in even rounds, odd ones in odd rounds, own optima."""
    federation = own_optima(rng, m, 20)
    federation.present = alternate(m)
    return federation


def copies(rng: Generator, m: int, count: int) -> Federation:
    """Some clients are one client under several names."""
    federation = own_optima(rng, m, 20, noise=0.0)
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
) -> Federation:
    """50 examples each, 500 fresh ones; ``prior`` b: a client's share of label 1 is Beta(b, b)."""
    n, fresh, groups = 50, 500, np.arange(m) % concepts
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
        inputs[:, :n], targets[:, :n], inputs[:, n:], targets[:, n:], logistic, batch
    )
    d = inputs.shape[2]
    return Federation(clients, groups, d, start=np.zeros(d))


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
    quadratic = federation.clients
    step = np.full((9, 20), 0.5)
    optima = np.vstack([quadratic.optima, np.zeros(20)])
    noise = np.r_[np.full(8, 0.05), length / np.sqrt(20)]
    federation.clients = Silenced(optima, optima, noise, step)
    federation.groups = np.r_[federation.groups, -1]
    federation.present = lambda server_round, _: np.arange(9) < (9 if server_round <= 2 else 8)
    return federation


class Silenced(Quadratic):
    """The last client's updates are noise alone."""

    def update(self, client: int, model: Array, rng: Generator) -> Array:
        """One step towards c_i, with noise; for the last client, noise."""
        last = client == len(self.optima) - 1
        step = 0.0 if last else 0.5 * (self.optima[client] - model)
        return step + self.noise[client] * rng.normal(size=len(model))


def mixture(rng: Generator, m: int) -> Federation:
    """Each client mixes two concepts, in a share of its own."""
    share, ends = rng.random((m, 1)), rng.normal(size=(2, 20))
    optima = share * ends[0] + (1 - share) * ends[1] + 0.1 * rng.normal(size=(m, 20))
    return Federation(Quadratic(optima, optima, np.full(m, 0.05)), np.zeros(m), 20)


def circle(rng: Generator, m: int) -> Federation:
    """Concepts at angles 0 to 360° in a plane."""
    angle = rng.uniform(0, 2 * np.pi, m)
    plane = np.linalg.qr(rng.normal(size=(20, 2)))[0].T
    optima = 3 * np.c_[np.cos(angle), np.sin(angle)] @ plane + 0.1 * rng.normal(size=(m, 20))
    return Federation(Quadratic(optima, optima, np.full(m, 0.05)), np.zeros(m), 20)


def partial(federation: Federation, share: float) -> Federation:
    """The same with a share of the clients a round."""
    federation.present = some(len(federation.groups), share)
    return federation


Maker = Callable[[Generator], Federation]
FAMILIES: dict[str, tuple[DataSpec, Maker]] = {}
for k in (1, 2, 3, 5):
    FAMILIES[f"linreg {k} features"] = "nothing to gain", lambda g, k=k: regression(g, 10, k)
FAMILIES["linreg 2 features, SGD"] = "nothing to gain", lambda g: regression(g, 10, 2, batch=10)
FAMILIES["linreg 2 features, 5 clients"] = "nothing to gain", lambda g: regression(g, 5, 2)
for m in (3, 4):
    FAMILIES[f"linreg 5 features, {m} clients"] = (
        "nothing to gain",
        lambda g, m=m: regression(g, m, 5),
    )
    FAMILIES[f"own optima, {m} clients"] = "nothing to gain", lambda g, m=m: own_optima(g, m, 20)
    FAMILIES[f"own noise, {m} clients"] = "nothing to gain", lambda g, m=m: own_noise(g, m, 50)
for k in (2, 5, 10):
    FAMILIES[f"logistic {k} features"] = (
        "nothing to gain",
        lambda g, k=k: regression(g, 10, k, logistic=True),
    )
for k in (2, 5, 10):
    for name, m, prior, batch in (
        ("Beta(1,1)", 10, 1.0, 0),
        ("Beta(.5,.5), 20 clients", 20, 0.5, 0),
        ("Beta(.5,.5), 20 clients, SGD", 20, 0.5, 10),
    ):
        FAMILIES[f"logistic {k} features, {name}"] = (
            "continuum",
            lambda g, k=k, m=m, p=prior, b=batch: regression(
                g, m, k, logistic=True, prior=p, batch=b
            ),
        )
for data, m, n, columns in (
    ("breast_cancer", 10, 40, 0),
    ("breast_cancer", 10, 40, 2),
    ("wine", 5, 20, 0),
    ("wine", 5, 20, 2),
    ("diabetes", 10, 30, 0),
    ("diabetes", 10, 30, 2),
):
    name = f"{data}, {columns or 'all'} columns, {m} clients"
    FAMILIES[name] = (
        "nothing to gain",
        lambda g, d=data, m=m, n=n, c=columns: table(g, d, m, n, c),
    )
for rank in (1, 2, 3, 10):
    for m in (10, 20):
        FAMILIES[f"own optima, rank {rank}, {m} clients"] = (
            "nothing to gain",
            lambda g, m=m, r=rank: own_optima(g, m, 50, r),
        )
for d in (2, 3, 5):
    FAMILIES[f"warm start, d={d}"] = "nothing to gain", lambda g, d=d: warm(g, 10, d)
for times in (10, 100):
    FAMILIES[f"one client of {times} x the examples"] = (
        "nothing to gain",
        lambda g, t=times: big_client(g, 10, t),
    )
for times in (3, 5, 10):
    FAMILIES[f"one client {times} x as far"] = "continuum", lambda g, t=times: far_client(g, 10, t)
for d in (2, 50):
    FAMILIES[f"own noise, d={d}"] = "nothing to gain", lambda g, d=d: own_noise(g, 10, d)
for factor in (0.95, 1.0):
    FAMILIES[f"alternating, x-{factor:g}"] = (
        "nothing to gain",
        lambda g, f=factor: oscillating(g, 10, f),
    )
FAMILIES["alternating, own optima"] = "nothing to gain", lambda g: alternating(g, 10)
FAMILIES["3 copies"] = "nothing to gain", lambda g: copies(g, 10, 3)
for share in (0.2, 0.5):
    FAMILIES[f"own optima, {share:.0%} a round"] = (
        "nothing to gain",
        lambda g, s=share: partial(own_optima(g, 20, 20), s),
    )
FAMILIES["mixtures of two"] = "continuum", lambda g: mixture(g, 20)
for m in (10, 20):
    FAMILIES[f"angles 0-360, {m} clients"] = "continuum", lambda g, m=m: circle(g, m)
for count, d in ((c, d) for c in (2, 4) for d in (1, 2, 3, 5)):
    FAMILIES[f"{count}x5 groups, d={d}"] = (
        "planted",
        lambda g, c=count, d=d: planted(g, (5,) * c, d),
    )
for count in (10, 20):
    FAMILIES[f"{count} groups of 2"] = "planted", lambda g, c=count: planted(g, (2,) * c, 50)
for sizes in ((2, 2), (2, 2, 2), (95, 5), (18, 2), (9, 1), (36, 2, 2), (4, 4, 4)):
    name = ":".join(map(str, sizes))
    FAMILIES[name] = "planted", lambda g, s=sizes: planted(g, s)
FAMILIES["18:2, own optima 0.5"] = "planted", lambda g: planted(g, (18, 2), spread=0.5)
FAMILIES["3x10, own optima 1, d=50"] = "planted", lambda g: planted(g, (10,) * 3, 50, 1.0)
FAMILIES["2x10, 10% a round"] = "planted", lambda g: planted(g, (10, 10), share=0.1)
FAMILIES["2x10, 50% a round"] = "planted", lambda g: planted(g, (10, 10), share=0.5)
for share in (0.1, 0.02):
    FAMILIES[f"4x250, {share:.0%} a round"] = (
        "planted",
        lambda g, s=share: planted(g, (250,) * 4, 50, 0.3, 0.5, s),
    )
    FAMILIES[f"own optima, 1000 clients, {share:.0%} a round"] = (
        "nothing to gain",
        lambda g, s=share: partial(own_optima(g, 1000, 20), s),
    )
FAMILIES["linreg, 2 concepts"] = "planted", lambda g: regression(g, 10, 5, batch=10, concepts=2)
FAMILIES["logistic, 2 concepts"] = (
    "planted",
    lambda g: regression(g, 10, 5, logistic=True, batch=10, concepts=2),
)
for length in (0.1, 0.5):
    FAMILIES[f"4:4 and a leaver, noise {length:g}"] = (
        "planted",
        lambda g, length=length: leaver(g, length),
    )
