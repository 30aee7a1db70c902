"""The ServerApp: a FedAvg quickstart's, with `ClusteredFL` and a `Recorder` in its place."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from cflower import ClusteredFL, Recorder
from pytorchexample.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Main entry point for the ServerApp."""
    config = context.run_config

    # Make the first model, the same in every run
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())

    # Initialize the strategy
    recorder = Recorder(config["output-dir"], config, resume=config["resume"])
    strategy = ClusteredFL(fraction_evaluate=config["fraction-evaluate"], observers=[recorder])

    # Start the strategy
    strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
