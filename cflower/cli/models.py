"""The commands of a data owner: which model is mine, and may I have it as a file?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cflower.cli.runs import DEFAULT_RUNS, RUN_HELP, AsJson, Run, RunsDir
from cflower.config import read_overrides
from cflower.errors import ConfigError
from cflower.messages.claims import listed
from cflower.runs.run_files import find_run

if TYPE_CHECKING:
    from cflower.newcomers.assign import Assignment, Level
    from cflower.newcomers.unlabelled import Recognition

SeedFile = Annotated[
    str, typer.Option("--seed-file", help="The clients' secret, of a run with privacy.")
]


def assign(
    run: Run = "",
    data: Annotated[
        Path | None,
        typer.Option(help="The newcomer's folder: images by class, Parquet, CSV or NPZ; or:"),
    ] = None,
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="With --data: by the inputs alone, if they tell.")
    ] = False,
    app: Annotated[
        str, typer.Option(help="Of any other app's run: its ClientApp, package.module:name.")
    ] = "",
    node_config: Annotated[
        str, typer.Option(help='With --app, the newcomer\'s node config: "key=value ...".')
    ] = "",
    seed_file: SeedFile = "",
    runs: RunsDir = DEFAULT_RUNS,
    as_json: AsJson = False,
) -> None:
    """Find the model for a client that was not there (Algorithm 4), without sending anything.

    At every split it trains from the model that was split, as the run's clients did, and goes to
    the side that holds the update most like its own. Without labels it goes by how sure the
    clusters' models are of its inputs, and says so where these do not tell.
    """
    folder = find_run(runs.expanduser(), run)
    console = Console(highlight=False)
    waiting = Console(stderr=as_json)
    if unlabelled:
        if app or data is None:
            raise ConfigError(
                "Got --unlabelled without --data: of another app's run only newcomers with labels "
                "can be assigned."
            )
        from cflower.newcomers.unlabelled import assign_unlabelled  # loads PyTorch

        with waiting.status("Starting") as status:
            told = assign_unlabelled(
                folder, data.expanduser(), say=status.update, seed_file=seed_file
            )
        return print_recognition(console, folder.name, told, as_json)
    from cflower.newcomers.assign import assign as place  # loads PyTorch

    with waiting.status("Starting") as status:
        found = place(
            folder,
            data and data.expanduser(),
            say=status.update,
            app=app or None,
            node_config=read_overrides([node_config], "--node-config"),
            seed_file=seed_file,
        )
    if as_json:
        return print(json.dumps(as_record(found), indent=1))
    console.print(path_table(found))
    for sentence in sentences(found):
        console.print(sentence, soft_wrap=True, markup=False)
    if found.stranger_at is None:
        console.print(as_file(folder.name, found.cluster), soft_wrap=True, markup=False)


def as_file(run: str, cluster: str) -> str:
    """How to have a cluster's model."""
    return f"As a file: cflower export {run} --cluster {cluster}"


def export(
    run: Run = "",
    client: Annotated[str, typer.Option(help="Whose model; or:")] = "",
    cluster: Annotated[str, typer.Option(help="Which cluster's, such as 0.1; 0: for all.")] = "",
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors, torchscript or onnx; by the ending of --output, else safetensors.",
        ),
    ] = "",
    output: Annotated[
        Path | None, typer.Option(help="The file; RUN-CLUSTER in this folder if not given.")
    ] = None,
    seed_file: SeedFile = "",
    module: Annotated[
        str,
        typer.Option(help="Of any other app's run: package.module:factory of its PyTorch module."),
    ] = "",
    input_shape: Annotated[
        str, typer.Option(help="With --module: shape of one example, such as 1,8,8.")
    ] = "",
    runs: RunsDir = DEFAULT_RUNS,
) -> None:
    """Write a model of a run as a file, with a model card (Markdown) beside it.

    Nothing that is there is overwritten.
    """
    folder = find_run(runs.expanduser(), run)
    from cflower.exporting.export import export as write  # loads PyTorch

    console = Console(highlight=False)
    with console.status("Writing the model, reading it back"):
        path = write(
            folder,
            client=client,
            cluster=cluster,
            file_format=file_format,
            output=output or "",
            seed_file=seed_file,
            module=module,
            input_shape=read_shape(input_shape),
        )
    print(f"Model: {path}")
    print(f"Card: {path}.md")


def as_record(found: "Assignment") -> dict[str, Any]:
    """An assignment as JSON has it."""
    path = []
    for level in found.levels:
        entry: dict[str, Any] = {
            "cluster": level.cluster,
            "clients": level.members,
            **level.metrics,
        }
        if level.step is not None:
            fork = level.step.fork
            entry |= {
                "similarity": level.step.similarity,
                "margin": fork.margin,
                "similarities": dict(fork.similarities),
            }
        path.append(entry)
    return {
        "cluster": found.cluster,
        "stranger": found.stranger_at is not None,
        "stranger_at": None if found.stranger_at is None else found.stranger_at.cluster,
        "num_train": found.num_train,
        "num_held_out": found.num_held_out,
        "path": path,
    }


def read_shape(text: str) -> tuple[int, ...]:
    """The lengths in a text such as "1,8,8"."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(
            f"Got --input-shape {text!r}, but expected whole numbers such as 1,8,8."
        ) from None


def path_table(found: "Assignment") -> Table:
    """The way down: the models on it, and what the newcomer resembled at each fork."""
    table = Table(title=f"the way down ({found.num_train} examples to train on)")
    table.add_column("cluster")
    table.add_column("clients", justify="right")
    table.add_column(f"{found.metric.name} on {found.num_held_out} held out", justify="right")
    table.add_column("similarity to each side")
    table.add_column("margin", justify="right")
    for level in found.levels:
        sides, margin = "", ""
        if level.step is not None:
            fork = level.step.fork
            sides = "\n".join(
                f"{child} {alpha:+.3f}{' <' if child == fork.child else ''}"
                for child, alpha in fork.similarities.items()
            )
            margin = f"{fork.margin:.3f}"
        cells = (level.cluster, str(level.members), figure(level, found), sides, margin)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def sentences(found: "Assignment") -> list[str]:
    """What the way down means."""
    first, last = found.levels[0], found.levels[-1]
    step = found.stranger_at
    if step is None:
        return [
            f"The newcomer belongs to cluster {last.cluster}: its model has {found.metric.name} "
            f"{figure(last, found)} on the held-out examples, that of all clients (cluster "
            f"{first.cluster}) {figure(first, found)}."
        ]
    usual = step.typical
    members = "" if usual.members is None else f" than to the {usual.members:+.3f} of its members"
    best = found.best
    return [
        f"The newcomer resembles nobody at cluster {step.cluster}: its best similarity, "
        f"{step.similarity:+.3f} to {step.fork.child}, is nearer to the {usual.others:+.3f} usual "
        f"for clients of the other sides{members}. No cluster here trained on data like these. "
        f"On the way to cluster {found.cluster}, where Algorithm 4 ends, the model of cluster "
        f"{best.cluster} does best on the newcomer's {found.num_held_out} held-out examples "
        f"({figure(best, found)}): judge by that whether it is of use."
    ]


def figure(level: "Level", found: "Assignment") -> str:
    """A model's leading metric, as far as the newcomer measured it."""
    value = level.metrics.get(found.metric.name)
    return "-" if value is None else f"{value:.4f}"


def print_recognition(console: Console, run: str, found: "Recognition", as_json: bool) -> None:
    """What is found of a newcomer without labels."""
    if as_json:
        return print(json.dumps(recognition_record(found), indent=1))
    table = Table(title=f"how sure the models are of {found.num_examples} examples without labels")
    table.add_column("cluster")
    table.add_column("clients", justify="right")
    table.add_column("entropy, nats", justify="right")
    table.add_column("usual there", justify="right")
    table.add_column("its labels lead")
    table.add_column("probability", justify="right")
    ways = {True: "there", False: "elsewhere", None: "-"}
    for leaf in found.candidates:
        usual = "-" if leaf.usual is None else f"{leaf.usual:.3f}"
        figures = (f"{leaf.entropy:.3f}", usual, ways[leaf.confirmed], f"{leaf.probability:.1%}")
        table.add_row(leaf.cluster, str(leaf.members), *figures)
    console.print(table)
    console.print(recognition_sentence(found), soft_wrap=True, markup=False)
    if found.in_question:
        console.print(as_file(run, found.cluster), soft_wrap=True, markup=False)


def recognition_record(found: "Recognition") -> dict[str, Any]:
    """What is found of a newcomer without labels, as JSON has it."""
    steps = found.cluster.split(".")
    return {
        "cluster": found.cluster,
        "stranger": found.outcome == "resembles nobody",
        "outcome": found.outcome,
        "in_question": found.in_question,
        "num_examples": found.num_examples,
        "path": [{"cluster": ".".join(steps[: i + 1])} for i in range(len(steps))],
        "leaves": [leaf._asdict() for leaf in found.candidates],
    }


def recognition_sentence(found: "Recognition") -> str:
    """What the inputs of a newcomer say."""
    nearest = found.candidates[0]
    if found.outcome == "placed":
        return (
            f"The newcomer belongs to cluster {found.cluster} (probability "
            f"{nearest.probability:.1%}), as far as its inputs tell."
        )
    common = f"cluster {found.cluster}" + (", that of all clients" * (found.cluster == "0"))
    if found.outcome == "resembles nobody":
        why = (
            f"is less sure of its examples (entropy {nearest.entropy:.3f} nats) than of its "
            f"clients' ({nearest.usual:.3f})"
            if nearest.confirmed and nearest.usual is not None
            else "gives labels with which Algorithm 4 leads elsewhere"
        )
        return (
            f"The newcomer resembles nobody: even the model that knows it best, that of cluster "
            f"{nearest.cluster}, {why}. Labels would tell more (leave out --unlabelled); until "
            f"then there is the model of {common}."
        )
    return (
        f"Which of the clusters {listed(found.in_question)} the newcomer belongs to cannot be "
        f"told without labels: its inputs are as usual in any of them. Label some and leave out "
        f"--unlabelled; until then there is the model of {common}."
    )


def add_to(app: typer.Typer) -> None:
    """Make these commands of `cflower`."""
    for command in (assign, export):
        app.command(epilog=RUN_HELP)(command)
