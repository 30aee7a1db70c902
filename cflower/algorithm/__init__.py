"""Clustered Federated Learning on plain NumPy arrays: the paper, without plumbing.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", arXiv 1910.01991. Equation and algorithm numbers in
this package are that paper's. Nothing here knows Flower or PyTorch.
"""
