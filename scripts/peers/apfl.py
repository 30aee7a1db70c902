"""APFL: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", arXiv 2003.13461
(Algorithm 1).

FedAvg trains one model w. Beside it every participant trains a model v of its own, and is served by
the mixture m = α v + (1 − α) w with the w that it has just trained: in each step, on one batch,
w ← w − η ∇F(w) and v ← v − η α ∇F(m). Nothing of v is ever sent.

Both steps together move m by −η (α² ∇F(m) + (1 − α) ∇F(w)), so that m is trained here and v is what
remains of it.

Differences from the authors' code (MLOPTPSU/FedTorch, commit ab8068d, ``federated/apfl.py``):

- The mixture is of the parameters, as in the paper; there of the two models' logits.
- All steps have momentum, as everything here.
"""

import torch

from peers.federation import Change, Federation, Outcome, Vector


def run(federation: Federation, alpha: float) -> Outcome:
    """FedAvg, and every client's mixture of it with a model of its own.

    Parameters
    ----------
    federation : Federation
    alpha : float
        The share of a client's own model, in (0, 1].
    """
    own = dict.fromkeys(federation.clients, federation.initial)
    mixed, model = dict(own), federation.initial
    for server_round in range(1, federation.rounds + 1):
        trained: dict[str, Vector] = {}
        for client in federation.participants(server_round):
            federation.send(len(model))
            record, mix = gradients(alpha)
            trained[client] = federation.train(client, model, server_round, change=record)
            federation.receive(len(model))
            start = alpha * own[client] + (1 - alpha) * model
            mixed[client] = federation.train(client, start, server_round, change=mix)
            own[client] = (mixed[client] - (1 - alpha) * trained[client]) / alpha
        model = federation.mean(trained)
    return Outcome(mixed)


def gradients(alpha: float) -> tuple[Change, Change]:
    """For the steps of w, which are noted, and for those of the mixture, on the same batches."""
    seen: dict[int, list[torch.Tensor]] = {}

    def record(place: slice, gradient: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        seen.setdefault(place.start, []).append(gradient)
        return gradient

    def mix(place: slice, gradient: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        return alpha**2 * gradient + (1 - alpha) * seen[place.start].pop(0)

    return record, mix
