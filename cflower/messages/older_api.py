"""ClientApps with a ``client_fn``, as for a NumPyClient: Flower's API before its messages.

They get the same messages with records of other names, a model as a list of arrays without names,
and reply in the same way: Flower's ``recorddict_compat`` has the format.
"""

from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from cflower.algorithm.state import Task
from cflower.messages.arrays import records_in
from cflower.messages.client_names import TASKS
from cflower.messages.failures import BadReplyError
from cflower.messages.layout import Layout
from cflower.ordering import line


def instructions(task: Task, content: RecordDict) -> RecordDict:
    """The content of a message for this task, with one model and one config."""
    (arrays,) = records_in(content, ArrayRecord).values()
    (config,) = records_in(content, ConfigRecord).values()
    name = f"{TASKS[task].older}ins"
    return RecordDict({f"{name}.parameters": arrays, f"{name}.config": config})


def as_records(content: RecordDict, layout: Layout, weighted_by: str) -> RecordDict:
    """A reply's content as that of an app with messages; `BadReplyError` if it is none.

    The arrays are those of the layout, in its order. Metrics that are no numbers are left out.
    """
    try:
        name = "fitres" if "fitres.status" in content else "evaluateres"
        configs, measured = records_in(content, ConfigRecord), records_in(content, MetricRecord)
        status = configs[f"{name}.status"]
        metrics = {weighted_by: measured[f"{name}.num_examples"]["num_examples"]}
        if status["code"] == 0:
            loss = measured[f"{name}.loss"] if name == "evaluateres" else {}
            others = configs[f"{name}.metrics"]
            numbers = {k: float(v) for k, v in others.items() if isinstance(v, int | float)}
            records = RecordDict({"metrics": MetricRecord({**loss, **numbers, **metrics})})
            if name == "fitres":
                sent = records_in(content, ArrayRecord)["fitres.parameters"]
                records["arrays"] = named(sent, layout)
            return records
    except BadReplyError:
        raise
    except Exception as error:  # what comes from outside can lack anything
        raise BadReplyError(f"is none of a client_fn's: {line(repr(error), 60)}") from None
    raise BadReplyError(f"says: {line(str(status['message']), 200)}")


def named(sent: ArrayRecord, layout: Layout) -> ArrayRecord:
    """A list of arrays under the model's names, with shapes and dtypes from their own headers."""
    if len(sent) != len(layout.entries):
        raise BadReplyError(f"has {len(sent)} arrays, but the model has {len(layout.entries)}")
    record = ArrayRecord()
    for entry, array in zip(layout.entries, sent.values(), strict=True):
        file = BytesIO(array.data)
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        record[entry.key] = Array(str(dtype), shape, "numpy.ndarray", array.data)
    return record
