"""The ClientApp."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cflower import name_clients
from jaxexample.task import accuracy, load_data, loss_of, params_of, record_of
from jaxexample.task import train as train_fn

app = name_clients(ClientApp())


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    pixels, labels, _, _ = data_of(context)
    config = context.run_config
    params = train_fn(
        params_of(msg.content["arrays"]),
        pixels,
        labels,
        config["local-epochs"],
        msg.content["config"]["lr"],
        config["batch-size"],
    )
    loss = float(loss_of(params, pixels, labels))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    content = {"arrays": record_of(params), "metrics": metrics}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    _, _, pixels, labels = data_of(context)
    params = params_of(msg.content["arrays"])
    metrics = {
        "loss": float(loss_of(params, pixels, labels)),
        "accuracy": accuracy(params, pixels, labels),
        "num-examples": len(labels),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def data_of(context: Context):
    """Examples to train on, and those held out."""
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
