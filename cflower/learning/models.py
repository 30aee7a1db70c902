"""The models that clients can train, fitted to the shape of their inputs.

Every model returns logits, shape (batch, num_classes), and the language model one set for each
place of its input, (batch, num_classes, length). Sources: the classroom lab
(`lab-convnet`), the FedAvg notebook (`simple-cnn`, `ham-cnn`), the article (`mlp`), and the paper's
section VI-C (`cifar-cnn`, `lstm`), which specifies no more than "5-layer convolutional neural
network" and "two-layer LSTM network".
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cflower.errors import ConfigError
from cflower.learning.device import chosen_device
from cflower.own_code import called, names_own_code, own_function
from cflower.settings import check_choice, require


class Architecture(NamedTuple):
    """A model: the inputs it takes, and how to build it."""

    takes: str
    """One of `INPUTS`, or ``"anything"``."""
    build: Callable[[tuple[int, ...], int], nn.Module]
    least_side: int = 0
    """Least height and width of images in pixels; least length of time series in moments."""


class Inputs(NamedTuple):
    """A kind of inputs."""

    axes: int
    unit: str
    advice: str
    """A cure for a model that needs them if the data are of another kind."""


INPUTS = {
    "images": Inputs(3, "pixels", "use model = 'mlp' for rows of numbers"),
    "time series": Inputs(2, "moments", "set series-channels to how many numbers one moment has"),
    "text": Inputs(1, "tokens", "use dataset = 'text:FOLDER', or another model"),
}


def build_model(name: str, input_shape: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    """A freshly initialised model on the CPU, in training mode.

    Its name is one of `MODELS`, or ``package.module:factory``, see `coded_model`. The input shape
    is (channels, height, width) of an image, (channels, moments) of a time series, (features,), or
    (tokens,) of a text. The seed decides the weights; torch's global generator stays as it is.

    Raises a ConfigError if there is no such model, or the inputs are too small or of another kind.

    >>> model = build_model("lab-convnet", (1, 28, 28), 62, seed=0)
    >>> model.classifier
    Linear(in_features=256, out_features=62, bias=True)
    """
    if names_own_code(name):
        with _seeded(seed):
            return coded_model(name, input_shape, num_classes)
    check_choice("model", name, MODELS)
    architecture = MODELS[name]
    _check_inputs(name, architecture, input_shape)
    with _seeded(seed):
        return architecture.build(input_shape, num_classes)


def _check_inputs(name: str, architecture: Architecture, input_shape: tuple[int, ...]) -> None:
    """Raise a ConfigError for inputs of another kind or below the least size."""
    takes, _, least_side = architecture
    if takes == "anything":
        return
    kind, sides = INPUTS[takes], input_shape[1:]
    require(
        len(input_shape) == kind.axes,
        f"model = {name!r} needs {takes}, but inputs have shape {input_shape}: {kind.advice}.",
    )
    side = min(sides, default=0)
    fitting = (n for n, a in MODELS.items() if a.takes in (takes, "anything"))
    smaller = " or ".join(n for n in fitting if MODELS[n].least_side <= side)
    require(
        side >= least_side,
        f"model = {name!r} needs {takes} of at least {least_side} {kind.unit} a side, but these "
        f"are {'x'.join(map(str, sides))}: use {smaller}.",
    )


@lru_cache(maxsize=4)
def empty_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, device: str
) -> nn.Module:
    """A model on a device to load parameters into; every message overwrites all of them."""
    return build_model(name, input_shape, num_classes, seed=0).to(chosen_device(device))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def coded_model(name: str, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The model that a user's factory ``package.module:factory`` returns.

    The factory takes ``(input_shape, num_classes)`` as `build_model` does and returns a
    `torch.nn.Module` on the CPU, from inputs of shape (batch, *input_shape) to logits of shape
    (batch, num_classes), for sequences (batch, num_classes, length). Raises a ConfigError if there
    is no such factory, it raises, or its result is no such model.
    """
    model = called("model", name, own_function("model", name), input_shape, num_classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model = {name!r} returned a {type(model).__name__}: expected a torch.nn.Module."
        )
    with torch.no_grad():  # also gives lazy layers their shapes
        logits = called("model", name, model.eval(), torch.zeros(2, *input_shape))
    is_tensor = isinstance(logits, Tensor)
    got = f"shape {tuple(logits.shape)}" if is_tensor else type(logits).__name__
    require(
        is_tensor and logits.shape[:2] == (2, num_classes),
        f"model = {name!r} answers two inputs of shape {input_shape} with {got}: expected "
        f"logits of shape (2, {num_classes}), one for each class.",
    )
    called("model", name, arrays_of, model)  # of types that NumPy has
    require(
        any(parameter.requires_grad for parameter in model.parameters()),
        f"model = {name!r} returned a model without anything to train.",
    )
    return model.train()


def arrays_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    """A model's parameters and buffers by name, on the CPU: views of them if they are there."""
    return {key: tensor.cpu().numpy() for key, tensor in model.state_dict().items()}


def _cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    # Images below 16 pixels have nothing to spare between the convolutions: on the 8x8 digits
    # a pooling there costs half a point of accuracy. The last one gives 4x4 for any image.
    small = min(input_shape[1:]) < 16
    return _layers(
        conv1=nn.Conv2d(input_shape[0], 16, kernel_size=3, padding=1),
        relu1=nn.ReLU(),
        pool1=nn.Identity() if small else nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, kernel_size=3, padding=1),
        relu2=nn.ReLU(),
        pool2=nn.AdaptiveMaxPool2d(4),  # shape: (batch, 32, 4, 4)
        flatten=nn.Flatten(),
        classifier=nn.Linear(512, num_classes),
    )


def _conv_net(
    channels: tuple[int, ...],
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    kernel: int,
    hidden: int = 0,
) -> nn.Module:
    """Convolutions, the first two of them pooled, then perhaps a hidden layer of this width."""
    net = nn.Sequential()
    for number, (before, after) in enumerate(pairwise([input_shape[0], *channels]), start=1):
        net.add_module(f"conv{number}", nn.Conv2d(before, after, kernel))
        if number <= 2:
            net.add_module(f"pool{number}", nn.MaxPool2d(2))
        net.add_module(f"relu{number}", nn.ReLU())
    net.add_module("flatten", nn.Flatten())
    width = net(torch.zeros(1, *input_shape)).shape[1]
    if hidden:
        net.add_module("hidden", nn.Linear(width, hidden))
        net.add_module("relu", nn.ReLU())
    net.add_module("classifier", nn.Linear(hidden or width, num_classes))
    return net


def _conv1d(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    # The last pooling gives 4 moments for any length: the order of events in a window matters more
    # than their position.
    return _layers(
        conv1=nn.Conv1d(input_shape[0], 16, kernel_size=5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),
        conv2=nn.Conv1d(16, 32, kernel_size=5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.AdaptiveMaxPool1d(4),  # shape: (batch, 32, 4)
        flatten=nn.Flatten(),
        classifier=nn.Linear(128, num_classes),
    )


def _mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _layers(
        flatten=nn.Flatten(),
        hidden=nn.Linear(prod(input_shape), 128),
        relu=nn.ReLU(),
        classifier=nn.Linear(128, num_classes),
    )


def _linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return _layers(flatten=nn.Flatten(), classifier=nn.Linear(prod(input_shape), num_classes))


class NextToken(nn.Module):
    """A two-layer LSTM that predicts the next word, or character, at every place."""

    def __init__(self, vocabulary: int, width: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) to logits (batch, vocabulary, length)."""
        states, _ = self.lstm(self.embedding(tokens.long()))
        return self.classifier(states).transpose(1, 2)  # type: ignore[no-any-return]


def _layers(**layers: nn.Module) -> nn.Module:
    """Layers one after another; their names become the keys of the model's parameters."""
    return nn.Sequential(OrderedDict(layers))


MODELS = {
    "cnn": Architecture("images", _cnn, 8),
    "lab-convnet": Architecture("images", partial(_conv_net, (6, 16), kernel=5), 16),
    "simple-cnn": Architecture("images", partial(_conv_net, (10, 20), kernel=5, hidden=50), 16),
    "ham-cnn": Architecture("images", partial(_conv_net, (16, 32), kernel=5, hidden=120), 16),
    "cifar-cnn": Architecture("images", partial(_conv_net, (32, 64, 64), kernel=3, hidden=64), 18),
    "mlp": Architecture("anything", _mlp),
    "linear": Architecture("anything", _linear),
    "conv1d": Architecture("time series", _conv1d, 8),
    "lstm": Architecture("text", lambda input_shape, num_classes: NextToken(num_classes)),
}
