"""The ClientApp: a FedAvg quickstart's, and one line that gives its clients lasting names."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cflower import name_clients
from pytorchexample.task import Net, load_data
from pytorchexample.task import test as test_fn
from pytorchexample.task import train as train_fn

app = name_clients(ClientApp())


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model, device = received(msg)
    loader, _ = data_of(context)
    config = context.run_config
    loss = train_fn(model, loader, config["local-epochs"], msg.content["config"]["lr"], device)
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    model, device = received(msg)
    _, loader = data_of(context)
    loss, accuracy = test_fn(model, loader, device)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def received(msg: Message) -> tuple[Net, torch.device]:
    """The model that the server sent."""
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return model.to(device), device


def data_of(context: Context):
    """This client's loaders for training and for testing."""
    node, batch_size = context.node_config, context.run_config["batch-size"]
    return load_data(node["partition-id"], node["num-partitions"], batch_size)
