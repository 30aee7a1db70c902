"""The ServerApp: reads the config, finds the clients, runs `ClusteredFL`, writes the run folder."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from cflower.algorithm.criteria import Criterion, NeverSplit
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.auto.chosen import ChosenNumber
from cflower.auto.criterion import AutoCriterion
from cflower.clients.methods import local_keys
from cflower.config import LOOPS, RunConfig
from cflower.errors import CFlowerError, FederationError, RunFolderError
from cflower.learning.models import arrays_of, build_model
from cflower.messages.arrays import record_of
from cflower.messages.claims import DataSpec, most_common
from cflower.messages.client_names import CLASSES_HERE, METHOD, PREPARATION, TABLE
from cflower.messages.layout import Layout
from cflower.messages.roll_call import RollCall
from cflower.ordering import line, only
from cflower.own_code import names_own_code, own_object
from cflower.privacy.agreement import ask_first_model, seed_check
from cflower.recording.progress import RoundProgress, Say, print_while_read
from cflower.recording.recorder import Recorder
from cflower.recording.trackers import Tracker
from cflower.runs.ways import KINDS, OWN_METHODS
from cflower.settings import require
from cflower.simulation.inline_grid import InlineGrid
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.ifca import IFCA
from cflower.strategy.observers import Observer
from cflower.strategy.reports import FinalReport
from cflower.strategy.scaffold import SCAFFOLD
from cflower.tables.agreement import agree as prepare
from cflower.tables.agreement import as_text, doubts, input_names, preparation_in_words, read
from cflower.tables.agreement import problem_with as unfit

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from its config to its folder."""
    inline = isinstance(grid, InlineGrid)
    try:
        run(grid, context, say=print_while_read if inline else None)
    except CFlowerError:
        if not inline:
            # Flower prints what a ServerApp raises with its traceback, which a user does not need:
            # the error is one sentence. This process ends with the run.
            sys.tracebacklimit = 0
        raise


def run(
    grid: Grid, context: Context, say: Say | None, criterion: Criterion | None = None
) -> dict[str, Any]:
    """Federation, rounds, final evaluation; the content of ``summary.json``.

    ``say`` prints a text to the user, in place of Flower's log. A ``criterion`` takes the place of
    that of the config.
    """
    config = RunConfig.read(context.run_config)
    recorder = Recorder(
        config.output_path,
        config.as_keys(),
        name=config.run_name,
        app="cflower",
        resume=config.resume,
        run_id=context.run_id,
        say=say,
        checkpoint_interval=config.checkpoint_interval,
    )
    trackers = [Tracker(config.tracker, recorder)] if config.tracker else []
    roll_call = roll_call_of(config)
    terminal = [] if say is None else [RoundProgress(say)]
    strategy = strategy_of(config, criterion, roll_call, [recorder, *trackers, *terminal])
    (model, *others), about = agree_on_model(grid, roll_call, config, recorder)
    if isinstance(strategy, IFCA):
        strategy.first_models += [model, *others]
    recorder.baselines = dict.fromkeys(OWN_METHODS) if config.baselines else None
    train(strategy, grid, model, config, about)
    if recorder.problem:
        raise RunFolderError(f"{recorder.problem}.")
    for method in OWN_METHODS if config.baselines else ():
        recorder.say(f"Training a baseline: {KINDS[method].words}.")
        # Conventional FL is eq. 2 as it is: a limit on honest minorities would make it worse.
        alike = replace(
            config, method=method, baselines=False, fraction_evaluate=0.0, max_influence=0.0
        )
        baseline = strategy_of(alike, None, roll_call, [])
        recorder.add_baseline(method, train(baseline, grid, model, alike, about))
    return recorder.summary


def train(
    strategy: ClusteredFL, grid: Grid, model: ArrayRecord, config: RunConfig, about: ConfigRecord
) -> FinalReport:
    """All rounds of a strategy, with ``about`` in the config of each message."""
    rounds, timeout = config.num_server_rounds, config.round_timeout
    report = strategy.start(grid, model, rounds, timeout, about, about).report
    if not report.clients:
        raise FederationError("No client answered the final evaluation.")
    return report


def roll_call_of(config: RunConfig) -> RollCall:
    return RollCall(config.node_timeout, share=config.fraction_train, seed=config.seed)


def agree_on_model(
    grid: Grid, roll_call: RollCall, config: RunConfig, recorder: Recorder
) -> tuple[list[ArrayRecord], ConfigRecord]:
    """Wait for clients whose data fit one model; the first models, and the messages' config."""
    clients = roll_call.gather(grid, config.min_available_nodes)
    known = only(roll_call.facts, clients)
    facts, private = [*known.values()], config.privacy == "permutation"
    spec, seed_problem = most_common(facts), seed_check(facts, permuted=private)
    preparation = preparation_of(known, config, recorder)

    def problem_with(facts: Mapping[str, Any]) -> str:
        problem = spec.problem_with(facts) or seed_problem(facts)
        if problem or not preparation:
            return problem
        description = read(facts.get(TABLE, ""))
        if description is None:
            return "its data are no table of numbers and texts, as those of the others are"
        return unfit(description, preparation)

    roll_call.require(problem_with)
    roll_call.gather(grid, config.min_available_nodes)
    require(
        config.metric != "auc" or len(spec.class_names) == 2,
        f"Got metric='auc', but the clients have {len(spec.class_names)} classes and not two: set "
        "metric='f1', which weighs each class alike.",
    )
    if preparation:
        spec = spec._replace(input_shape=(len(input_names(preparation)),))
        recorder.say(preparation_in_words(spec.class_names, preparation))
        holding = {name: one.get(CLASSES_HERE, ()) for name, one in roll_call.facts.items()}
        for sentence in doubts(spec.class_names, holding):
            recorder.say(f"Warning: {sentence}")
    number = config.num_models if config.method == "ifca" else 1
    models = [initial_model(config, spec, i) for i in range(number)]
    about = ConfigRecord({PREPARATION: as_text(preparation)} if preparation else {})
    if config.method in LOOPS:
        about[METHOD] = config.method
    if private:
        models = [ask_first_model(grid, roll_call, Layout.of(models[0]), about)]
    return models, about


def preparation_of(
    facts: Mapping[str, Mapping[str, Any]], config: RunConfig, recorder: Recorder
) -> dict[str, Any] | None:
    """How the columns of the clients' tables become inputs; None if most clients have none."""
    if config.resume and (before := recorder.preparation_before()):
        return before
    described = {name: read(one[TABLE]) for name, one in facts.items() if TABLE in one}
    usable = {name: description for name, description in described.items() if description}
    if 2 * len(usable) <= len(facts):
        return None
    scaled = config.standardise == "common"
    preparation = prepare(usable, scaled=scaled, named=bool(config.input_columns))
    require(
        bool(input_names(preparation)),
        "No column of the clients' tables can be an input: "
        f"{', '.join(f'{line(name)} is {why}' for name, why in preparation['unused'].items())}. "
        "Name the columns to learn from with input-columns.",
    )
    return preparation


def strategy_of(
    config: RunConfig,
    criterion: Criterion | None,
    roll_call: RollCall,
    observers: Sequence[Observer],
) -> ClusteredFL:
    """The strategy that a run config describes: its fields have the config's names."""
    names = {spec.name for spec in fields(ClusteredFL)} & {spec.name for spec in fields(config)}
    settings = {name: getattr(config, name) for name in names}
    settings["metric"] = config.leading_metric
    if config.trial_rounds < 0:
        settings["trial_rounds"] = None  # the criterion's
    for name in ("moving", "personal"):
        settings[name] = None if settings[name] else False
    rate, momentum = config.server_learning_rate or None, config.server_momentum
    if names_own_code(config.server_optimizer):
        optimizer = own_object("server-optimizer", config.server_optimizer, "step")
    else:
        optimizer = ServerOptimizer(config.server_optimizer, rate, momentum)
    settings |= {"min_train_nodes": 1, "min_evaluate_nodes": 0, "optimizer": optimizer}
    settings |= {"observers": observers, "roll_call": roll_call}
    if names_own_code(config.aggregation):
        settings["aggregation"] = own_object("aggregation", config.aggregation, "mean")
    if config.method == "ifca":
        return IFCA(**settings)
    settings["isolated"] = config.method == "isolated"
    kind = SCAFFOLD if config.method == "scaffold" else ClusteredFL
    return kind(criterion or criterion_of(config), **settings)


def criterion_of(config: RunConfig) -> Criterion:
    if config.method != "clustered":
        return NeverSplit()
    if config.clusters:
        return ChosenNumber(heard_share=config.heard_share, clusters=config.clusters)
    if config.split_criterion == "auto":
        return AutoCriterion(heard_share=config.heard_share)
    if names_own_code(config.split_criterion):
        return cast(Criterion, own_object("split-criterion", config.split_criterion, "decide"))
    return config.part(NormCriterion)


def initial_model(config: RunConfig, kind: DataSpec, number: int = 0) -> ArrayRecord:
    seed = config.seed + 1_000 * number
    model = build_model(config.model, kind.input_shape, kind.num_outputs, seed)
    local_keys(config.method, model)  # refuses a model without the layers that stay on clients
    return record_of(arrays_of(model))
