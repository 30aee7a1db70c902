"""Clients compute on the chosen device, and copy little to it; `meta` stands for a GPU."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cflower.client_app import app
from cflower.data.examples import Examples
from cflower.errors import ConfigError
from cflower.learning.device import chosen_device
from cflower.learning.models import build_model
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import train
from cflower.server_app import run
from cflower.simulation.simulate import simulate


class Copies(TorchDispatchMode):
    """Counts the tensors that are copied from the CPU to the device `meta`."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        to = kwargs.get("device")
        if function is torch.ops.aten._to_copy.default and to == torch.device("meta"):
            self.count += args[0].device.type == "cpu"
        return function(*args, **kwargs)


def examples(num):
    inputs = np.random.default_rng(0).normal(size=(num, 1, 8, 8)).astype(np.float32)
    return Examples(inputs, (inputs[:, 0, 0, 0] > 0).astype(np.int64), ("no", "yes"))


def copies_of(model, data, epochs):
    with Copies() as copies, pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        # On `meta` everything is computed but the last figure, which has no value.
        train(model, data, TrainingSettings(local_epochs=epochs), server_round=1, seed=0)
    return copies.count


@pytest.mark.parametrize("name", [pytest.param("cnn", marks=pytest.mark.slow), "mlp"])
def test_no_batch_is_copied_to_the_device(name):
    model = build_model(name, (1, 8, 8), 2, seed=0).to("meta")
    few, many = (copies_of(model, examples(num), epochs=1) for num in (32, 32 * 9))
    assert 0 < few == many


def test_a_clients_examples_are_copied_once_and_its_order_once_an_epoch():
    model, data = build_model("cnn", (1, 8, 8), 2, seed=0).to("meta"), examples(64)
    assert copies_of(model, data, epochs=2) == 2 + 2
    assert copies_of(model, data, epochs=2) == 2


def test_a_device_that_this_machine_lacks_is_refused_with_those_it_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [str(chosen_device(name)) for name in ("auto", "cpu", "cuda", "cuda:1")]
    assert devices == ["cuda:0", "cpu", "cuda", "cuda:1"]
    with pytest.raises(ConfigError, match=r"device='cuda:2', but .* cpu, cuda:0, cuda:1.* set"):
        chosen_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert str(chosen_device("auto")) == "cpu"


def test_clients_without_the_device_refuse_before_the_first_round(tmp_path):
    keys = {"device": "cuda:99", "output-dir": str(tmp_path), "min-available-nodes": 2}
    with pytest.raises(Exception, match="Got device='cuda:99', but PyTorch finds only"):
        simulate(
            app, 2, server_app=lambda grid, context: run(grid, context, say=print), run_config=keys
        )
