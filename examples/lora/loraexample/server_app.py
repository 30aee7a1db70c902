"""The ServerApp."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from peft import get_peft_model_state_dict

from cflower import ClusteredFL, NeverSplit, Recorder
from loraexample.task import adapted, pretrain

app = ServerApp()
BASELINES = {"federated": {}, "isolated": {"isolated": True}}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train adapters, and keep the evidence."""
    config = context.run_config
    folder = Path(config["base"]).expanduser()
    if folder.is_absolute() and not folder.exists():
        pretrain(folder, config)
    model = adapted(config["base"], config["rank"])
    arrays = ArrayRecord(get_peft_model_state_dict(model))
    rounds = config["num-server-rounds"]
    recorder = Recorder(config["output-dir"], config, resume=config["resume"])
    settings = {"metric": "perplexity", "fraction_evaluate": 0.0}
    ClusteredFL(observers=[recorder], **settings).start(grid, arrays, rounds)
    for method, more in BASELINES.items() if config["baselines"] else ():
        baseline = ClusteredFL(NeverSplit(), **settings, **more)
        baseline.start(grid, arrays, rounds)
        recorder.add_baseline(method, baseline.final_report)
