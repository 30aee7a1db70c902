"""The ClientApp: some passes of stochastic gradient descent over an agency's flats."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import root_mean_squared_error

from cflower import name_clients
from sklearnexample.task import arrays_of, load_data, model_of

app = name_clients(ClientApp())


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    flats, rents, _, _ = data_of(context)
    model = model_of(msg.content["arrays"], msg.content["config"]["lr"])
    for _ in range(context.run_config["local-epochs"]):
        model.partial_fit(flats, rents)
    metrics = {"rmse": rmse(model, flats, rents), "num-examples": len(flats)}
    content = {"arrays": arrays_of(model), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    _, _, flats, rents = data_of(context)
    model = model_of(msg.content["arrays"], learning_rate=0.01)
    metrics = {"rmse": rmse(model, flats, rents), "num-examples": len(flats)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def data_of(context: Context):
    """Flats and rents to train on, and those held out."""
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


def rmse(model, flats, rents) -> float:
    """The usual error of a rent, in 100 a month."""
    return float(root_mean_squared_error(rents, model.predict(flats)))
