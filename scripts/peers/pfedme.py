"""pFedMe: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS
2020, arXiv 2006.08848 (Algorithm 1).

A client's own model θ minimises F(θ) + λ/2 ‖θ − w‖² for its copy w of everyone's model. After every
K steps on it, w follows: w ← w − ηλ (w − θ). The server averages the copies. In every round θ
begins at everyone's model; it serves the client and is never sent.

w follows as often as others take steps, so that a client computes K times as many gradients.

Differences from the authors' code (CharlieDinh/pFedMe, commit caf24b1, ``users/userpFedMe.py``):

- θ is trained as cflower trains everything, SGD with momentum, each of the K steps on the next
  batch; there it is plain SGD with a weight decay of 0.001, and all K are on the same batch.
- Who does not take part in a round does not train; there it does, and is not averaged.
- β = 1 (the server takes the mean as it is), which is the first of the paper's settings.
"""

from dataclasses import replace

import torch

from peers.federation import Federation, Outcome, Vector


def run(federation: Federation, strength: float, rate: float, steps: int = 5) -> Outcome:
    """Everyone's model, and every client's own near it.

    Parameters
    ----------
    federation : Federation
    strength : float
        λ, how strongly a client's own model is pulled towards its copy of everyone's.
    rate : float
        ηλ, the share of the way that the copy then goes to the own model.
    steps : int
        K, 5 in the paper.
    """
    own = dict.fromkeys(federation.clients, federation.initial)
    model, training = federation.initial, federation.training
    settings = replace(training, local_epochs=steps * training.local_epochs)
    for server_round in range(1, federation.rounds + 1):
        copies: dict[str, Vector] = {}
        for client in federation.participants(server_round):
            federation.send(len(model))
            copy = Copy(model, strength, rate, steps)
            own[client] = federation.train(
                client, model, server_round, settings=settings, change=copy.pull
            )
            copies[client] = copy.follow(slice(None), torch.tensor(own[client])).numpy()
            federation.receive(len(model))
        model = federation.mean(copies)
    return Outcome(own)


class Copy:
    """A client's copy of everyone's model during one round."""

    def __init__(self, model: Vector, strength: float, rate: float, steps: int) -> None:
        self.values, self.strength = torch.tensor(model), strength
        self.rate, self.steps = rate, steps
        self.taken: dict[int, int] = {}

    def pull(self, place: slice, gradient: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        """The gradient of F and of the distance to the copy."""
        taken = self.taken.get(place.start, 0)
        self.taken[place.start] = taken + 1
        if taken and taken % self.steps == 0:
            self.follow(place, here)
        return gradient + self.strength * (here - self.values[place])

    def follow(self, place: slice, own: torch.Tensor) -> torch.Tensor:
        """Let a part of the copy go to the own model; the whole copy."""
        self.values[place] += self.rate * (own - self.values[place])
        return self.values
