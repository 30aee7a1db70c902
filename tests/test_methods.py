"""The methods in which clients train otherwise: each beside the same method written down anew."""

import copy
import math
from dataclasses import replace
from functools import partial
from math import ceil

import numpy as np
import pytest
import torch
from families.planted import run_config
from flwr.app import Context, RecordDict
from peers import ifca, own
from peers.contest import in_process
from peers.federation import Change, Federation, Outcome, Vector, pulled
from torch import nn

from cflower.clients.methods import controlled, length_of, local_keys, only_training
from cflower.clients.methods import pulled as pulled_in_the_app
from cflower.config import RunConfig
from cflower.errors import ConfigError
from cflower.learning.dense import sgd_step
from cflower.learning.models import build_model
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import evaluate, train
from cflower.messages.arrays import record_of, values_of
from cflower.messages.client_names import CONTROL
from cflower.seeding import torch_seed
from tests.command import error_of

FAMILIES = "rotation-2", "label-permutation-4", "dirichlet-rotation"


def fedprox(here: Federation, mu: float) -> Outcome:
    """Li et al., Algorithm 2."""
    model = here.initial
    for server_round in range(1, here.rounds + 1):
        pull = pulled(mu, towards=model)
        clients = here.participants(server_round)
        model = here.mean({c: here.train(c, model, server_round, change=pull) for c in clients})
    return Outcome(dict.fromkeys(here.clients, model))


def scaffold(here: Federation) -> Outcome:
    """Karimireddy et al., Algorithm 1, option II, without momentum."""
    model, common = here.initial, np.zeros_like(here.initial)
    own = dict.fromkeys(here.clients, common)
    for server_round in range(1, here.rounds + 1):
        trained, lr = {}, here.training.learning_rate_in(server_round)
        changes = np.zeros_like(common)
        for client in here.participants(server_round):
            correct = corrected(common - own[client])
            trained[client] = here.train(client, model, server_round, change=correct)
            batches = ceil(len(here.clients[client].train) / here.training.batch_size)
            steps = here.training.local_epochs * batches
            after = own[client] - common + (model - trained[client]) / (steps * lr)
            changes += after - own[client]
            own[client] = after
        model = here.mean(trained, weighted=False)
        common = common + changes / len(here.clients)
    return Outcome(dict.fromkeys(here.clients, model))


def corrected(correction: Vector) -> Change:
    """Adds a vector to the gradient."""
    more = torch.tensor(correction)
    return lambda place, gradient, here: gradient + more[place]


def ditto(here: Federation, strength: float) -> Outcome:
    """Li et al., Algorithm 1."""
    own_models, model = dict.fromkeys(here.clients, here.initial), here.initial
    for server_round in range(1, here.rounds + 1):
        pull, clients = pulled(strength, towards=model), here.participants(server_round)
        trained = {c: here.train(c, model, server_round) for c in clients}
        for client in clients:
            before = own_models[client]
            own_models[client] = here.train(client, before, server_round, change=pull)
        model = here.mean(trained)
    return Outcome(own_models)


def fedper(here: Federation) -> Outcome:
    """Arivazhagan et al., Algorithm 1."""
    shared = here.size_below_the_head()
    body, heads = here.initial[:shared], dict.fromkeys(here.clients, here.initial[shared:])
    for server_round in range(1, here.rounds + 1):
        trained = {
            client: here.train(client, np.concatenate([body, heads[client]]), server_round)
            for client in here.participants(server_round)
        }
        heads |= {client: model[shared:] for client, model in trained.items()}
        body = here.mean({client: model[:shared] for client, model in trained.items()})
    return Outcome({client: np.concatenate([body, head]) for client, head in heads.items()})


def fedrep(here: Federation) -> Outcome:
    """Collins et al., Algorithm 1."""
    shared = here.size_below_the_head()
    body, heads = here.initial[:shared], dict.fromkeys(here.clients, here.initial[shared:])
    head_only, body_only = frozen(0, shared), frozen(shared, len(here.initial))
    for server_round in range(1, here.rounds + 1):
        trained = {}
        for client in here.participants(server_round):
            start = np.concatenate([body, heads[client]])
            headed = here.train(client, start, server_round, change=head_only)
            whole = here.train(client, headed, server_round, change=body_only)
            heads[client], trained[client] = headed[shared:], whole[:shared]
        body = here.mean(trained)
    epochs, last = replace(here.training, local_epochs=10), here.rounds
    models = {}
    for client, head in heads.items():
        start = np.concatenate([body, head])
        models[client] = here.train(client, start, last, settings=epochs, change=head_only)
    return Outcome(models)


def normalised(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A model with a normalisation layer, whose statistics are no parameters."""
    size = math.prod(input_shape)
    first = nn.Flatten(), nn.Linear(size, 32), nn.BatchNorm1d(32), nn.ReLU()
    return nn.Sequential(*first, nn.Linear(32, num_classes))


def fedbn(here: Federation) -> dict[str, float]:
    """Li et al., Algorithm 1; the accuracy of each client."""
    shape, classes = here.clients["partition-0"].train.sizes
    model = build_model("tests.test_methods:normalised", shape, classes, here.config.seed)
    first = copy.deepcopy(model.state_dict())
    of_the_layer = [key for key in first if key.startswith("2.")]
    common, own = first, {c: {key: first[key] for key in of_the_layer} for c in here.clients}
    for server_round in range(1, here.rounds + 1):
        trained = {}
        for client, data in here.clients.items():
            model.load_state_dict({**common, **own[client]})
            seed = torch_seed(here.config.seed, "train", server_round, client)
            train(model, data.train, here.training, server_round=server_round, seed=seed)
            trained[client] = copy.deepcopy(model.state_dict())
            own[client] = {key: trained[client][key] for key in of_the_layer}
        sizes = [len(here.clients[client].train) for client in trained]
        common = {
            key: torch.tensor(
                np.average([t[key] for t in trained.values()], axis=0, weights=sizes)
            ).float()
            for key in first.keys() - set(of_the_layer)
        }
    found = {}
    for client, data in here.clients.items():
        model.load_state_dict({**common, **own[client]})
        found[client] = evaluate(model, data.report)["accuracy"]
    return found


def frozen(begin: int, end: int) -> Change:
    """No gradient for the parameters in these places: SGD without weight decay leaves them."""

    def change(place: slice, gradient: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        inside = begin <= place.start and place.stop <= end
        return torch.zeros_like(gradient) if inside else gradient

    return change


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("method", "anew", "strength"),
    [
        ("fedprox", partial(fedprox, mu=0.2), 0.2),
        ("ditto", partial(ditto, strength=0.05), 0.05),
        ("fedper", fedper, 0.1),
        ("fedrep", fedrep, 0.1),
        ("ifca", partial(ifca.run, k=3), 0.1),
    ],
)
def test_a_method_of_the_app_gives_every_client_the_accuracy_of_its_algorithm(
    family, method, anew, strength
):
    more = {"model": "mlp", "num-server-rounds": 3, "local-epochs": 2}
    # Deciding examples are kept apart in both.
    config = run_config("digits", "", family, "auto", 22, more)
    apart = {"trial-rounds": 1, "proximal-mu": strength, "num-models": 3}
    expected, _ = in_process(anew, config)
    found, _ = own.run(method, config, apart)
    figures = [{c: v["accuracy"] for c, v in s["clients"].items()} for s in (expected, found)]
    assert figures[0] == figures[1]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_fedbn_gives_every_client_the_accuracy_of_its_algorithm(family):
    more = {"model": "mlp", "num-server-rounds": 3, "local-epochs": 2}
    config = run_config("digits", "", family, "auto", 22, more)
    expected = fedbn(Federation(config))
    keys = {"trial-rounds": 1, "model": "tests.test_methods:normalised"}
    found, _ = own.run("fedbn", config, keys)
    assert {client: line["accuracy"] for client, line in found["clients"].items()} == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_scaffold_without_momentum_gives_every_client_the_accuracy_of_its_algorithm(family, share):
    more = {"model": "mlp", "num-server-rounds": 3, "local-epochs": 2, "momentum": 0.0}
    config = run_config("digits", "", family, "auto", 22, {**more, "fraction-train": share})
    expected, _ = in_process(scaffold, config)
    found, _ = own.run("scaffold", config, {"trial-rounds": 1, "fraction-train": share})
    figures = [{c: v["accuracy"] for c, v in s["clients"].items()} for s in (expected, found)]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_where_the_gradient_never_changes_scaffolds_control_variate_is_it(momentum):
    settings = TrainingSettings(local_epochs=2, batch_size=4, momentum=momentum)
    model, gradient = nn.Linear(3, 1, bias=False), torch.tensor([[1.0, -2.0, 3.0]])
    step, velocities = sgd_step(settings, 2), [None]

    def run(model):
        for _ in range(2 * 3):
            (model.weight * gradient).sum().backward()
            with torch.no_grad():
                step([model.weight], [model.weight.grad.clone()], velocities)
            model.weight.grad = None
        return {}

    context = Context(1, 1, {}, RecordDict(), {})
    common = record_of({"weight": np.zeros((1, 3), np.float32)})
    _, change = controlled(model, common, context, run, length_of(settings, 12, 2))
    assert np.allclose(change["weight"], gradient, rtol=1e-4)
    assert np.allclose(values_of(context.state[CONTROL]["weight"]), gradient, rtol=1e-4)


def test_without_a_pull_fedprox_is_fedavg():
    more = {"model": "mlp", "num-server-rounds": 2}
    config = run_config("digits", "", "rotation-2", "auto", 22, more)
    alone, _ = own.run("federated", config)
    found, _ = own.run("fedprox", config, {"trial-rounds": 1, "proximal-mu": 0.0})
    assert [c["accuracy"] for c in alone["clients"].values()] == [
        c["accuracy"] for c in found["clients"].values()
    ]


def half_frozen() -> nn.Module:
    """Two layers, of which the first one is not trained."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    return model


def trained_by(model: nn.Module) -> list[str]:
    return [key for key, parameter in model.named_parameters() if parameter.requires_grad]


def test_what_a_model_does_not_train_stays_so_when_a_method_trains_a_part():
    model = half_frozen()
    with only_training(model, {"0.weight", "1.weight"}):
        assert trained_by(model) == ["1.weight"]
    assert trained_by(model) == ["1.weight", "1.bias"]


def test_the_pull_towards_a_model_leaves_alone_what_is_not_trained():
    model, towards = half_frozen(), half_frozen()
    with pulled_in_the_app(model, towards, strength=2.0):
        model(torch.zeros(1, 4)).sum().mul(0).backward()
    difference = model[1].weight - towards[1].weight
    torch.testing.assert_close(model[1].weight.grad, 2 * difference)
    assert model[0].weight.grad is None


def test_a_model_without_such_layers_is_refused_in_a_sentence(tmp_path):
    text = "method='fedbn' model='mlp' num-server-rounds=1 min-available-nodes=3"
    error = error_of("simulate", "-c", text, "--clients", 3, "--out", tmp_path)
    assert "'fedbn' keeps normalisation layers, such as BatchNorm, at each client" in error
    assert "the model has none: choose another model or method." in error


def test_normalisation_layers_stay_on_the_clients_by_fedbn():
    layers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    assert {key.split(".")[0] for key in local_keys("fedbn", layers)} == {"1"}
    assert "1.running_mean" in local_keys("fedbn", layers)
    assert {key.split(".")[0] for key in local_keys("fedper", layers)} == {"3"}


def test_layers_of_the_clients_do_not_go_with_a_secret_order_or_a_resumed_run():
    for wrong in ({"privacy": "permutation"}, {"resume": "2026"}):
        with pytest.raises(ConfigError, match="have models that no run folder"):
            RunConfig(method="fedper", **wrong)
