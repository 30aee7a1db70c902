"""Small classifiers with arrays that are not trained, as an app's own models."""

import math

import torch
from torch import nn


class FrozenBatchNorm(nn.BatchNorm1d):
    """BatchNorm with statistics that stay as they are, as in fine-tuning."""

    def train(self, mode=True):
        return super().train(False)


class Normaliser(nn.Module):
    """Scales inputs by running statistics, also in training: a variance below 0 gives NaN."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, inputs):
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(inputs.mean(0), 0.1)
                self.running_var.lerp_(inputs.var(0, correction=0), 0.1)
        return (inputs - self.running_mean) / (self.running_var + 0.01).sqrt()


class Picked(nn.Module):
    """The inputs in the order of a buffer with their places."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("places", torch.arange(width))

    def forward(self, inputs):
        return inputs[:, self.places]


def classifier(input_shape, num_classes, first=nn.Identity, norm=nn.Identity):
    width = math.prod(input_shape)
    layers = nn.Flatten(), first(width), nn.Linear(width, 64), norm(64), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(64, num_classes))


def frozen_batchnorm(input_shape, num_classes):
    return classifier(input_shape, num_classes, norm=FrozenBatchNorm)


def batchnorm(input_shape, num_classes):
    return classifier(input_shape, num_classes, norm=nn.BatchNorm1d)


def normalised(input_shape, num_classes):
    return classifier(input_shape, num_classes, first=Normaliser)


def indexed(input_shape, num_classes):
    return classifier(input_shape, num_classes, first=Picked)


class Levels(nn.Module):
    """The sum of a vector for each pixel's level of four: some levels are rare."""

    def __init__(self, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(4 * width, 64, mode="sum")
        self.register_buffer("places", 4 * torch.arange(width))

    def forward(self, inputs):
        return self.bag(self.places + (inputs * 3.999).long().clamp(0, 3)) / 4


def embedding(input_shape, num_classes):
    levels = Levels(math.prod(input_shape))
    return nn.Sequential(nn.Flatten(), levels, nn.ReLU(), nn.Linear(64, num_classes))
