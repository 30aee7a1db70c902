"""The ServerApp."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from cflower import ClusteredFL, Recorder
from transformersexample.task import first_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and keep the evidence."""
    config = context.run_config
    recorder = Recorder(config["output-dir"], config, resume=config["resume"])
    strategy = ClusteredFL(metric="perplexity", observers=[recorder])
    strategy.start(
        grid,
        ArrayRecord(first_model().state_dict()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
    )
