"""The device that a client computes on: a graphics card or the CPU."""

import re

import torch
from torch import nn

from cflower.errors import ConfigError


def chosen_device(name: str) -> torch.device:
    """The device of the key ``device``; for ``"auto"`` the first CUDA GPU, else the CPU.

    Raises a ConfigError if this machine has no such device.

    >>> chosen_device("cpu")
    device(type='cpu')
    """
    num_gpus = torch.cuda.device_count()
    there = ["cpu", *(f"cuda:{i}" for i in range(num_gpus))]
    if torch.backends.mps.is_available():
        there.append("mps")
    if name == "auto":
        return torch.device("cuda:0" if num_gpus else "cpu")
    if re.sub("^cuda$", "cuda:0", name) not in there:
        raise ConfigError(
            f"Got device={name!r}, but PyTorch finds only {', '.join(there)} on this machine: set "
            "device='auto' or one of these."
        )
    return torch.device(name)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters(), torch.empty(0)).device
