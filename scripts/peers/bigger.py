"""Federations with bigger models: a ResNet with BatchNorm, an LSTM, and LoRA on a transformer.

Twelve clients of 200 examples, a tenth to decide, two fifths to report, as a rule 14 rounds. The
folder of the data set ``fresh`` has ``cifar10`` and ``20newsgroups``. Learning rates were chosen by
models of the true groups on seed 9, with more clients, rounds and epochs; then the federations were
made smaller, before any method had run. ``bigger-lstm`` has 20 rounds of three epochs: in 14 of
two, run first, it hardly learned (cflower 34.0 %, one seed).

- ``bigger-turned``: CIFAR-10 with uneven labels; seven clients see the pictures upright, five on
  their side. `resnet`.
- ``bigger-named``: CIFAR-10; seven and five clients name half of the classes otherwise. `resnet`.
- ``bigger-lstm``: the first words of articles of four sections of 20 Newsgroups, each of which
  numbers its own four newsgroups, as in ``fresh-news``; four, three, three and two clients. `lstm`.
- ``bigger-lora``: every second newsgroup; six, four and two clients name half of them otherwise.
  `lora`: a transformer that was trained to tell the other newsgroups apart stays as it is. Clients
  train low-rank adapters of its layers and an output layer, and only these are sent.
"""

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from families.planted import Keys
from safetensors.torch import load_file, save_file
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu, scaled_dot_product_attention

from cflower.seeding import generator
from peers.fresh import PREFERENCE, Clients, by_section, half_otherwise, texts_of
from peers.levels import images_of
from peers.unseen import (
    CLASSES,
    KEYS,
    Group,
    Images,
    Labels,
    Rng,
    as_it_is,
    clients,
    dealt,
    turned_and_named,
    written,
)

WORDS, LENGTH = 2_000, 32
"""So many of the most frequent words are known, common English ones left out, and of an article so
many of them are read; 0 is after its end."""
WIDTH, HEADS, RANK = 64, 4, 4
"""Of the transformer, and of its adapters."""
PRETRAINED = "PEERS_PRETRAINED"
"""The environment variable that names the file of the transformer, for every process of a run."""


def turned(rng: Rng, folder: Path) -> Clients:
    on_its_side = turned_and_named(1, np.arange(CLASSES))
    return pictures(rng, folder, [Group(clients(7), as_it_is), Group(clients(5), on_its_side)])


def renamed(rng: Rng, folder: Path) -> Clients:
    return pictures(rng, folder, half_otherwise(rng, 7, 5), preference=0.0)


def pictures(
    rng: Rng, folder: Path, groups: list[Group], preference: float = PREFERENCE
) -> Clients:
    images, labels = images_of(folder / "cifar10")
    return dealt(lambda rng: groups, images, labels, rng, preference, as_seen=np.asarray)


def sections(rng: Rng, folder: Path) -> Clients:
    return by_section(rng, *articles(folder / "20newsgroups"), counts=(4, 3, 3, 2))


def adapted(rng: Rng, folder: Path) -> Clients:
    if not (path := Path(os.environ[PRETRAINED])).exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pretrain(folder / "20newsgroups", path)
    words, newsgroups, _ = articles(folder / "20newsgroups")
    known = np.flatnonzero(newsgroups % 2 == 0)
    groups = half_otherwise(rng, 6, 4, 2)
    return dealt(lambda rng: groups, words[known], newsgroups[known] // 2, rng, as_seen=np.asarray)


@cache
def articles(folder: Path) -> tuple[Images, Labels, list[str]]:
    """The numbers of the first words of each article, its newsgroup, and their names."""
    whole, newsgroups, names = texts_of(folder)
    texts = [[w for w in t.split() if w not in ENGLISH_STOP_WORDS] for t in whole]
    counts = Counter(word for text in texts for word in text if len(word) > 1)
    number = {word: 1 + place for place, (word, _) in enumerate(counts.most_common(WORDS))}
    numbers = np.zeros((len(texts), LENGTH), np.float32)
    for row, text in zip(numbers, texts, strict=True):
        found = [number[word] for word in text if word in number][:LENGTH]
        row[: len(found)] = found
    return numbers, newsgroups, names


class Residual(nn.Module):
    """Two convolutions with BatchNorm beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps (batch, before, height, width) to maps (batch, after, ...)."""
        hidden = self.norm2(self.conv2(relu(self.norm1(self.conv1(inputs)))))
        return relu(hidden + self.shortcut(inputs))


def resnet(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A ResNet with BatchNorm, eight layers deep."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, num_classes),
    )


class Reader(nn.Module):
    """An LSTM that reads an article, and a class by the mean of its states."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS + 1, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, words: Tensor) -> Tensor:
        """Numbers of words (batch, length) to logits (batch, classes)."""
        states, _ = self.lstm(self.embedding(words.long()))
        return self.classifier(mean_of(states, words))  # type: ignore[no-any-return]


def lstm(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """An LSTM as a classifier."""
    return Reader(num_classes)


def mean_of(states: Tensor, words: Tensor) -> Tensor:
    """The mean state of the words that an article has."""
    there = (words > 0).unsqueeze(2)
    return (states * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)


class Attention(nn.Module):
    """A layer of a transformer, normalised before each part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, states: Tensor, there: Tensor) -> Tensor:
        """States (batch, length, `WIDTH`), and where there are words (batch, 1, 1, length)."""
        batch, length, _ = states.shape
        parts = self.mix(self.norm1(states)).view(batch, length, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=there)
        states = states + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return states + self.down(relu(self.up(self.norm2(states))))


class Transformer(nn.Module):
    """An encoder of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        """Numbers of words (batch, length) to states (batch, length, `WIDTH`)."""
        there = (words > 0)[:, None, None, :]
        there = there | ~there.any(dim=3, keepdim=True)  # an article without a known word
        states = self.words(words.long()) + self.places.weight
        for layer in self.layers:
            states = layer(states, there)
        return self.norm(states)  # type: ignore[no-any-return]


def pretrain(folder: Path, path: Path) -> None:
    """Save a transformer that tells newsgroups apart of which no client has an article."""
    words, newsgroups, _ = articles(folder)
    known = np.flatnonzero(newsgroups % 2)
    words, labels = torch.tensor(words[known]), torch.tensor(newsgroups[known] // 2)
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model, classifier = Transformer(), nn.Linear(WIDTH, CLASSES)
    parameters = [*model.parameters(), *classifier.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    for _ in range(3):
        for batch in torch.randperm(len(words), generator=rng).split(64):
            logits = classifier(mean_of(model(words[batch]), words[batch]))
            loss = cross_entropy(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    save_file(model.state_dict(), path)


class Adapted(nn.Module):
    """A linear layer that stays as it is, and a low-rank adapter: Hu et al., arXiv 2106.09685."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, inputs: Tensor) -> Tensor:
        """As the layer, and the adapter's part added."""
        return self.layer(inputs) + linear(linear(inputs, self.down), self.up)  # type: ignore[no-any-return]


class WithAdapters(nn.Module):
    """The transformer with adapters, and a class by the mean of its states."""

    def __init__(self, transformer: Transformer, num_classes: int) -> None:
        super().__init__()
        self.transformer = frozen(transformer)
        for layer in transformer.layers:
            layer.mix, layer.out = Adapted(layer.mix), Adapted(layer.out)
            layer.up, layer.down = Adapted(layer.up), Adapted(layer.down)
        self.classifier = nn.Linear(WIDTH, num_classes)

    def forward(self, words: Tensor) -> Tensor:
        """Numbers of words (batch, length) to logits (batch, classes)."""
        return self.classifier(mean_of(self.transformer(words), words))  # type: ignore[no-any-return]


def frozen(model: nn.Module) -> nn.Module:
    """The model with buffers in place of its parameters, which are neither trained nor sent."""
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            delattr(module, name)
            module.register_buffer(name, parameter.detach(), persistent=False)
    return model


def lora(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The pretrained transformer with adapters; every process reads the same file."""
    transformer = Transformer()
    transformer.load_state_dict(load_file(os.environ[PRETRAINED]))
    return WithAdapters(transformer, num_classes)


MADE: dict[str, tuple[Callable[[Rng, Path], Clients], Keys]] = {
    "bigger-turned": (turned, {"model": "peers.bigger:resnet", "local-epochs": 2}),
    "bigger-named": (renamed, {"model": "peers.bigger:resnet", "local-epochs": 2}),
    "bigger-lstm": (
        sections,
        {
            "model": "peers.bigger:lstm",
            "num-server-rounds": 20,
            "local-epochs": 3,
            "learning-rate": 0.3,
        },
    ),
    "bigger-lora": (adapted, {"model": "peers.bigger:lora", "local-epochs": 1}),
}
"""The clients of a random generator and the folder, and the keys that differ."""
NAMES = tuple(MADE)


def federation(name: str, folder: str, seed: int, place: Path) -> Keys:
    """The run config of one of `NAMES`, whose examples are then in the folder `place`."""
    os.environ[PRETRAINED] = str(place.parent / "transformer.safetensors")
    make, keys = MADE[name]
    made = make(generator(seed, name), Path(folder).expanduser())
    return KEYS | {"num-server-rounds": 14} | written(made, place) | keys
