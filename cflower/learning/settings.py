"""The settings of local training: each run-config key of this layer, declared once."""

from dataclasses import dataclass

from cflower.settings import check_fields, number


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains in one round: plain SGD, as in the paper's section VI.

    Field ``local_epochs`` is the key ``local-epochs``; `pyproject.toml` explains each. The defaults
    are the lab's learning rate and momentum and the paper's 3 local epochs. With more of these,
    updates are longer, and so must be the thresholds on their norms.

    Raises a ConfigError if a value is out of its range.
    """

    local_epochs: int = number(3, least=1)
    batch_size: int = number(32, least=1)
    learning_rate: float = number(0.1, above=0)
    learning_rate_decay: float = number(0.99, above=0, most=1)
    momentum: float = number(0.9, least=0, below=1)
    weight_decay: float = number(0.0, least=0)
    proximal_mu: float = number(0.1, least=0)
    clients_together: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def learning_rate_in(self, server_round: int) -> float:
        """Learning rate of a round, counted from 1.

        >>> TrainingSettings(learning_rate=0.1, learning_rate_decay=0.5).learning_rate_in(3)
        0.025
        """
        return self.learning_rate * self.learning_rate_decay ** (server_round - 1)
