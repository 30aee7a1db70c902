"""The commands of a data owner: assign a newcomer to a cluster, export a model as a file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cflower.cli.runs import DEFAULT_RUNS, AsJson, RunArgument, RunsDir
from cflower.cli.simulate import shown_name
from cflower.errors import ConfigError
from cflower.ordering import line

if TYPE_CHECKING:
    from rich.table import Table

    from cflower.metric import Metric
    from cflower.newcomers.assign import Assignment

SeedFile = Annotated[
    str, typer.Option("--seed-file", help="The clients' secret, for a run with privacy.")
]
OwnCode = Annotated[
    bool,
    typer.Option("--own-code", help="Run the Python code that the run names as its model."),
]


def assign(
    run: RunArgument = "",
    data: Annotated[
        Path | None, typer.Option(help="Folder of its data: images by class, Parquet, CSV or NPZ.")
    ] = None,
    app: Annotated[
        str, typer.Option(help="For another app's run: its ClientApp, package.module:name.")
    ] = "",
    node_config: Annotated[
        str, typer.Option(help='With --app, the newcomer\'s node config: "key=value ...".')
    ] = "",
    seed_file: SeedFile = "",
    own_code: OwnCode = False,
    runs: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Assign a client that did not take part to a cluster (Algorithm 4), on this machine only.

    At every split it trains the model that was split, as the run's clients did, and is assigned to
    the group with the most similar updates.
    """
    from cflower.config import read_overrides
    from cflower.runs.run_files import find_run

    folder = find_run(runs.expanduser(), run)
    from cflower.newcomers.assign import assign as assign_newcomer  # loads PyTorch

    with Console(stderr=as_json).status("Starting") as status:
        assignment = assign_newcomer(
            folder,
            data and data.expanduser(),
            status.update,
            app=app or None,
            node_config=read_overrides([node_config], "--node-config"),
            seed_file=seed_file,
            own_code=own_code,
        )
    record = assignment_record(assignment)
    if as_json:
        return print(json.dumps(record, indent=1))
    Console(highlight=False).print(path_table(record, assignment.metric))
    print(assignment_sentence(assignment))
    if not record["stranger"]:
        print(f"As a file: cflower export {line(shown_name(folder))} --cluster {record['cluster']}")


def assignment_record(assignment: "Assignment") -> dict[str, Any]:
    path = []
    for level in assignment.levels:
        entry = {"cluster": level.cluster, "clients": level.members, **level.metrics}
        if step := level.step:
            cosines = dict(step.similarities)
            entry |= {"similarity": step.similarity, "margin": step.margin, "similarities": cosines}
        path.append(entry)
    stranger_at = assignment.stranger_at
    return {
        "cluster": assignment.cluster,
        "stranger": stranger_at is not None,
        "stranger_at": stranger_at and stranger_at.cluster,
        "num_train": assignment.num_train,
        "num_held_out": assignment.num_held_out,
        "personal_share": assignment.share,
        "path": path,
    }


def path_table(record: dict[str, Any], metric: "Metric") -> "Table":
    """The models on the newcomer's path, and its similarity to the children of each cluster."""
    from cflower.runs.tables import table_of

    rows = []
    for entry in record["path"]:
        cosines = entry.get("similarities", {}).items()
        row = {"cluster": entry["cluster"], "clients": str(entry["clients"])}
        measured = f"{metric.name} on {record['num_held_out']} held out"
        row[measured] = metric.in_words(entry.get(metric.name))
        row["similarity to each child"] = "\n".join(f"{child} {c:+.3f}" for child, c in cosines)
        rows.append(row | {"margin": f"{entry['margin']:.3f}" if "margin" in entry else ""})
    return table_of(f"path in the tree ({record['num_train']} training examples)", rows)


def assignment_sentence(assignment: "Assignment") -> str:
    stranger_at, step = assignment.stranger_at, assignment.personal
    if stranger_at is not None:
        return (
            f"The newcomer resembles no cluster: at cluster {stranger_at.cluster} its largest "
            f"similarity is {stranger_at.similarity:+.3f}, and members have more than "
            f"{stranger_at.bar:+.3f}. The best model for it is that of cluster "
            f"{assignment.best.cluster}."
        )
    sentence = f"The newcomer belongs to cluster {assignment.cluster}."
    if not assignment.share or step is None:
        return sentence
    return (
        f"{sentence} The members of this cluster have models of their own: with its "
        f"{assignment.num_train} training examples, {assignment.share:.0%} of a model that it "
        f"trains by itself for {step.length} rounds from the cluster's model serves the newcomer, "
        "else that model."
    )


def export(
    run: RunArgument = "",
    client: Annotated[str, typer.Option(help="The model that serves this client.")] = "",
    cluster: Annotated[str, typer.Option(help="The model of this cluster; 0: for all.")] = "",
    file_format: Annotated[str, typer.Option("--format", help="safetensors or onnx.")] = "",
    output: Annotated[
        Path | None, typer.Option(help="The file; RUN-CLUSTER in this folder if not given.")
    ] = None,
    seed_file: SeedFile = "",
    own_code: OwnCode = False,
    module: Annotated[
        str, typer.Option(help="For another app's run: its module, package.module:factory.")
    ] = "",
    input_shape: Annotated[
        str, typer.Option(help="With --module: shape of one example, such as 1,8,8.")
    ] = "",
    runs: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Write a model of a run as a file, and a model card (Markdown) next to it.

    Without --format the ending of --output decides, else it is safetensors. Existing files are
    never overwritten.
    """
    from cflower.runs.run_files import find_run

    folder = find_run(runs.expanduser(), run)
    from cflower.exporting.export import export as export_model  # loads PyTorch

    with Console(stderr=as_json).status("Writing the model and reading it back"):
        path = export_model(
            folder,
            client=client,
            cluster=cluster,
            file_format=file_format,
            output=output or "",
            seed_file=seed_file,
            own_code=own_code,
            module=module,
            input_shape=read_shape(input_shape),
        )
    program = path.with_suffix(".py")
    files = {"model": str(path), "card": f"{path}.md"}
    files |= {"program": str(program)} if program.is_file() else {}
    if as_json:
        return print(json.dumps(files, indent=1))
    print(f"Model: {line(path)}")
    print(f"Card: {line(path)}.md")
    if "program" in files:
        print(f"From a table: python {line(program)} rows.csv")


def read_shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(
            f"Got --input-shape {text!r}, but expected whole numbers such as 1,8,8."
        ) from None
