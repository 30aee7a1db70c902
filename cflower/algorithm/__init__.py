"""Clustered Federated Learning on plain NumPy arrays: the paper, without plumbing.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. Equation and algorithm numbers in
this package are that paper's. Nothing here knows Flower or PyTorch. SciPy is imported where it is
used: the process of a client, which never needs it, starts a second earlier.
"""
