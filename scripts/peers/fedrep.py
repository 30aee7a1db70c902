"""FedRep: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, arXiv 2102.07078 (Algorithm 1).

All layers but the last are shared, the last one is each client's own. In every round a participant
first trains its head under the shared layers that it received, then the shared layers under that
head, and sends the shared layers alone. After the last round every client trains its head once
more. There are no groups, and a newcomer has to train a head.

Differences from the authors' code (lgcollins/FedRep, commit d82e629, ``main_fedrep.py`` and
``LocalUpdate`` in ``models/Update.py``):

- Both trainings have the run's local epochs, learning rate and momentum, so that a participant
  trains twice in a round, as in Ditto; there the head has ten epochs and the rest one, with a
  weight decay of 0.0001. Ten epochs of the head after the last round are theirs.
- There the shared layers of MNIST's and CIFAR-10's models are all but the last one or two; here
  always all but the last.
"""

from dataclasses import replace

import numpy as np
import torch

from peers.federation import Change, Federation, Outcome

LAST_EPOCHS = 10
"""Of every client's head, after the last round."""


def run(federation: Federation) -> Outcome:
    """Train shared layers together and heads apart; nothing is given."""
    shared = federation.size_below_the_head()
    own = {client: federation.initial[shared:] for client in federation.clients}
    body = federation.initial[:shared]
    head_only, body_only = frozen(0, shared), frozen(shared, len(federation.initial))
    for server_round in range(1, federation.rounds + 1):
        trained = {}
        for client in federation.participants(server_round):
            federation.send(shared)
            start = np.concatenate([body, own[client]])
            headed = federation.train(client, start, server_round, change=head_only)
            whole = federation.train(client, headed, server_round, change=body_only)
            own[client], trained[client] = headed[shared:], whole[:shared]
            federation.receive(shared)
        body = federation.mean(trained)
    epochs = replace(federation.training, local_epochs=LAST_EPOCHS)
    models = {}
    for client, head in own.items():
        federation.send(shared)
        start, last = np.concatenate([body, head]), federation.rounds
        models[client] = federation.train(client, start, last, settings=epochs, change=head_only)
    return Outcome(models)


def frozen(begin: int, end: int) -> Change:
    """No gradient for the parameters in these places: SGD without weight decay leaves them."""

    def change(place: slice, gradient: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        inside = begin <= place.start and place.stop <= end
        return torch.zeros_like(gradient) if inside else gradient

    return change
