"""The model, the data and plain PyTorch training: nothing here knows of clusters."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class Net(nn.Module):
    """A small convolutional network for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.hidden = nn.Linear(16 * 4 * 4, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.max_pool2d(torch.relu(self.conv(images)), 2)
        return self.output(torch.relu(self.hidden(features.flatten(1))))


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """This client's share of scikit-learn's digits; every second client holds them sideways."""
    digits = load_digits()
    share = np.random.default_rng(0).permutation(len(digits.images))[partition_id::num_partitions]
    images = digits.images[share] / 16
    if partition_id % 2:
        images = np.rot90(images, axes=(1, 2)).copy()
    data = TensorDataset(
        torch.tensor(images, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target[share])
    )
    held_out = len(data) // 5
    test, train = Subset(data, range(held_out)), Subset(data, range(held_out, len(data)))
    # The same order in every process: an interrupted run can be gone on with exactly.
    order = torch.Generator().manual_seed(partition_id)
    return (
        DataLoader(train, batch_size=batch_size, shuffle=True, generator=order),
        DataLoader(test, batch_size=batch_size),
    )


def train(net: Net, loader: DataLoader, epochs: int, lr: float, device: torch.device) -> float:
    """Train on the training set; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def test(net: Net, loader: DataLoader, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy on the test set."""
    net.eval()
    loss, correct = 0.0, 0
    for images, labels in loader:
        logits, labels = net(images.to(device)), labels.to(device)
        loss += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += int((logits.argmax(1) == labels).sum())
    return loss / len(loader.dataset), correct / len(loader.dataset)
