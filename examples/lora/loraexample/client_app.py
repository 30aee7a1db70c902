"""The ClientApp: only the adapters' arrays are received and sent."""

from math import exp

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from cflower import name_clients
from loraexample.task import adapted, load_data, loss_on
from loraexample.task import train as train_fn

app = name_clients(ClientApp())


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the adapters, after measuring those that came."""
    model, config, (examples, *held_out) = received(msg, context)
    measured = metrics_of(model, msg, held_out)
    client, sent = context.node_config["partition-id"], msg.content["config"]
    seed = 1000 * sent["server-round"] + client
    rate = config["learning-rate"]
    train_fn(model, examples, config["local-epochs"], config["batch-size"], rate, seed)
    arrays = ArrayRecord(get_peft_model_state_dict(model))
    metrics = MetricRecord({**measured, "num-examples": len(examples)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """The perplexity of a token in the held-out examples."""
    model, _, (_, *held_out) = received(msg, context)
    measured = metrics_of(model, msg, held_out)
    metrics = MetricRecord({**measured, "num-examples": len(held_out[0])})
    facts = ConfigRecord({"parts-apart": True})
    return Message(RecordDict({"metrics": metrics, "client": facts}), reply_to=msg)


def received(msg: Message, context: Context) -> tuple[PeftModel, dict, tuple]:
    """The base model with the adapters that the server sent, the config, and the client's data."""
    config, node = context.run_config, context.node_config
    model = adapted(config["base"], config["rank"])
    set_peft_model_state_dict(model, msg.content["arrays"].to_torch_state_dict())
    texts = config["data"], config["languages"], config["base"]
    return model, config, load_data(*texts, node["partition-id"], node["num-partitions"])


def metrics_of(model: PeftModel, msg: Message, held_out: list[torch.Tensor]) -> dict[str, float]:
    """On the part of the held-out examples that is asked for."""
    loss = loss_on(model, held_out[msg.content["config"].get("part") != "decide"])
    return {"loss": loss, "perplexity": exp(loss)}
