"""Models and their local training with PyTorch: the work of a client between two messages."""
