"""The ServerApp."""

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from cflower import ClusteredFL, Recorder
from jaxexample.task import first_params, record_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and keep the evidence."""
    config = context.run_config
    recorder = Recorder(config["output-dir"], config, resume=config["resume"])
    strategy = ClusteredFL(observers=[recorder])
    strategy.start(
        grid,
        record_of(first_params()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
    )
