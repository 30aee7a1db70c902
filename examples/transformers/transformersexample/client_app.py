"""The ClientApp."""

from math import exp

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from transformers import GPT2LMHeadModel

from cflower import name_clients
from transformersexample.task import first_model, load_data, loss_on
from transformersexample.task import train as train_fn

app = name_clients(ClientApp())


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model, config = received(msg), context.run_config
    loader, _ = load_data(context.node_config["partition-id"], config["batch-size"])
    loss = train_fn(model, loader, config["local-epochs"], msg.content["config"]["lr"])
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    batch_size = context.run_config["batch-size"]
    _, loader = load_data(context.node_config["partition-id"], batch_size)
    loss = loss_on(received(msg), loader)
    metrics = {"loss": loss, "perplexity": exp(loss), "num-examples": len(loader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def received(msg: Message) -> GPT2LMHeadModel:
    """The model that the server sent."""
    model = first_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return model
