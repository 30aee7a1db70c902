"""Clustered Federated Learning as a Flower baseline: cflower's own apps, and two federations."""
