"""Updates of the output layer, matched class by class, so that uneven labels do not hide groups.

Not in the paper. The labels that a client happens to hold move its update more than its concept
does, in every round alike, so no average over rounds removes them. But the update of an output
layer with biases shows how much of each class a client has (label counts from gradients: iDLG, Zhao
et al., arXiv 2001.02610) and what its examples of that class look like: the rows of the weights are
sums of the last hidden layer's values. Rows of the same class can be compared between clients, as
FedDAG compares clients class by class (ICLR 2026), and FedClust by the output layer alone.
"""

import numpy as np

from cflower.algorithm.constants import LEAST_SHARE
from cflower.algorithm.similarity import Matrix


def class_matched(updates: Matrix) -> Matrix:
    """The class-matched view of the clients' average updates of the output layer.

    For client i, with W_ic and b_ic the average updates of class c's weights and bias, r the class
    with the least b_ic, and

        R_ic = W_ic - W_ir,  β_ic = b_ic - b_ir,  s_ic = β_ic / Σ β_ic (0 below `LEAST_SHARE`),

    the view is √s_ic · unit(R_ic / β_ic - mean of all clients with class c), for all classes:
    rows of length at most 1, shape (m, C h). ``updates`` has shape (m, C, h + 1), a row for each
    class: its h weights, then its bias.
    """
    weights, biases = updates[..., :-1], updates[..., -1]
    least = np.arange(len(updates)), biases.argmin(axis=1)
    rows, excess = weights - weights[least][:, None], biases - biases[least][:, None]
    shares = excess / np.maximum(excess.sum(axis=1, keepdims=True), np.finfo(excess.dtype).tiny)
    shares = np.where(shares < LEAST_SHARE, 0, shares)
    has = shares > 0
    means = rows / np.where(has, excess, 1)[..., None] * has[..., None]
    means -= means.sum(axis=0) / np.maximum(has.sum(axis=0), 1)[:, None]
    lengths = np.linalg.norm(means, axis=2)
    scale = np.sqrt(shares) / np.where(lengths > 0, lengths, 1)
    return np.asarray((means * scale[..., None]).reshape(len(updates), -1))
