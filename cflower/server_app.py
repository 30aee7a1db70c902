"""The ServerApp: reads the config, finds the clients, runs `ClusteredFL`, writes the run folder."""

import sys
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log
from rich.console import Console

from cflower.algorithm.auto import AutoCriterion
from cflower.algorithm.criteria import Criterion, NeverSplit, NormCriterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.config import RunConfig
from cflower.errors import CFlowerError, FederationError
from cflower.federation.agreement import Kind, prevailing
from cflower.federation.arrays import record_of
from cflower.federation.inline_grid import InlineGrid
from cflower.federation.privacy import Agreement, ask_first_model
from cflower.federation.reports import RoundReport
from cflower.federation.roll_call import RollCall
from cflower.federation.strategy import ClusteredFL
from cflower.learning.models import arrays_of, build_model
from cflower.runs.checkpoint import Checkpoint
from cflower.runs.folder import RunFolder, new_run_id
from cflower.runs.lines import round_figures
from cflower.runs.progress import RoundProgress, Say
from cflower.runs.reading import find_run, read_json
from cflower.runs.report import write_report
from cflower.runs.tables import as_text, run_view
from cflower.runs.trackers import check_tracker, start_tracker

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from its config to its folder."""
    inline = isinstance(grid, InlineGrid)
    try:
        run(grid, context, say=print if inline else say_by_log)
    except CFlowerError:
        if not inline:
            # Flower prints what a ServerApp raises with its traceback, which says nothing to
            # the user that the error's sentence does not. This process ends with the run.
            sys.tracebacklimit = 0
        raise


def say_by_log(text: str) -> None:
    """One log line per line of text."""
    for line in text.splitlines():
        log(INFO, line)


def run(
    grid: Grid, context: Context, say: Say, criterion: Criterion | None = None
) -> dict[str, Any]:
    """Federation, rounds, closing evaluation; see `main`.

    Parameters
    ----------
    grid, context
        As Flower hands them to a ServerApp.
    say : callable
        Prints one text to the user.
    criterion : Criterion, optional
        Used instead of the one that the run config names.

    Returns
    -------
    dict
        The content of ``summary.json``.
    """
    config = RunConfig.read(context.run_config)
    check_tracker(config.tracker)
    folder, checkpoint = open_folder(config, context.run_id, say)
    roll_call = RollCall(timeout=config.node_timeout)
    clients = roll_call.gather(grid, config.min_available_nodes)
    told = [roll_call.facts[name] for name in clients]
    private = config.privacy == "permutation"
    kind, seeds = prevailing(told), Agreement.among(told, permuted=private)
    roll_call.require(lambda facts: kind.problem_with(facts) or seeds.problem_with(facts))
    clients = roll_call.gather(grid, config.min_available_nodes)
    if checkpoint is not None:
        folder.require_seed(seeds.commitment)
    model = ask_first_model(grid, roll_call) if private else initial_model(config, kind)
    if checkpoint is None:
        folder.begin(seeds.commitment)
    folder.write_examples(kind)
    folder.write_clients({name: roll_call.facts[name] for name in clients})
    say(f"Run folder: {folder.path}")
    progress = RoundProgress(say, Console() if isinstance(grid, InlineGrid) else None)

    tracker = start_tracker(config.tracker, folder.path, config.as_keys())

    def on_round(report: RoundReport) -> None:
        folder.write_round(report, strategy.layout)
        if tracker is not None:
            tracker.log(round_figures(report), report.server_round)
        progress(report)

    strategy = ClusteredFL(
        criterion or criterion_of(config),
        fraction_train=config.fraction_train,
        fraction_evaluate=config.fraction_evaluate,
        min_train_nodes=1,
        min_evaluate_nodes=0,
        min_available_nodes=config.min_available_nodes,
        optimizer=ServerOptimizer(
            config.server_optimizer, config.server_learning_rate or None, config.server_momentum
        ),
        weighting=config.weighting,
        similarity_layers=config.similarity_layers,
        projection_dim=config.projection_dim,
        max_norm_ratio=config.max_norm_ratio,
        exclude_after=config.exclude_after,
        isolated=config.method == "isolated",
        selection=config.selection,
        seed=config.seed,
        roll_call=roll_call,
        on_round=on_round,
    )
    if checkpoint is not None:
        strategy.resume(checkpoint.state, checkpoint.server_round, checkpoint.conduct)
        say(f"Going on after round {checkpoint.server_round}.")
    try:
        strategy.start(grid, model, config.num_server_rounds, config.round_timeout)
    finally:
        progress.close()
        if tracker is not None:
            tracker.close()
    assert strategy.final_report is not None
    if not strategy.final_report.clients:
        raise FederationError("No client answered the closing evaluation.")
    summary = folder.write_end(strategy.final_report, config.num_server_rounds)
    say(as_text(run_view(summary, read_json(folder.path, "tree.json"))))
    say(report_of(folder))
    say(f"Run folder: {folder.path}")
    return summary


def open_folder(config: RunConfig, run_id: int, say: Say) -> tuple[RunFolder, Checkpoint | None]:
    """The folder of a new run, or that of the run to resume and its last checkpoint."""
    output = config.output_path()
    if not config.resume:
        return RunFolder(output / new_run_id(run_id), config.as_keys()), None
    folder = RunFolder(find_run(output, config.resume), config.as_keys())
    return folder, folder.take_up(warn=say)


def report_of(folder: RunFolder) -> str:
    """Write the report; the run is whole without it, so it does not fail with it."""
    try:
        return f"Report: {write_report(folder.path)}"
    except Exception as error:
        return f"No report was written ({error!r}); `cflower report {folder.path}` tries again."


def criterion_of(config: RunConfig) -> Criterion:
    """When this run splits a cluster."""
    if config.method != "clustered":
        return NeverSplit()
    if config.split_criterion == "auto":
        return AutoCriterion(heard_share=config.heard_share)
    return NormCriterion(
        config.eps1,
        config.eps2,
        config.gamma_max,
        config.linkage,
        config.min_cluster_size,
        config.heard_share,
    )


def initial_model(config: RunConfig, kind: Kind) -> ArrayRecord:
    """The first model, sized to the clients' data."""
    shape, num_classes = kind.input_shape, len(kind.class_names)
    return record_of(arrays_of(build_model(config.model, shape, num_classes, config.seed)))
