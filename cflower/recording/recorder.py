"""`Recorder`: what a run leaves behind, and the only place that writes it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from secrets import randbelow
from shutil import get_terminal_size
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Weights
from cflower.errors import RunFolderError
from cflower.messages.data_spec import DataSpec
from cflower.messages.layout import Layout
from cflower.ordering import in_order
from cflower.recording.checkpoint import Checkpoints
from cflower.recording.progress import say_by_log
from cflower.recording.resume import MAY_CHANGE, beginning, new_run_id, refuse_another
from cflower.recording.serialization import (
    data_line,
    note_split,
    numbers,
    rand_index,
    round_line,
    served_line,
    tree_lines,
    true_groups,
)
from cflower.recording.writing import append_lines, locked, replace_file
from cflower.runs.baselines import Baseline, against, baseline_line
from cflower.runs.record import baseline_lines, finding
from cflower.runs.report import write_report
from cflower.runs.run_files import find_run, read_json, read_lines
from cflower.runs.tables import as_text, model_tables, run_view
from cflower.strategy.observers import Checkpoint, Observer, RunStart
from cflower.strategy.reports import FinalReport, RoundReport

CHECKPOINTS = "checkpoints"
FOLDERS = ("models", "general", "edges")
MANY = 1000
"""Clients from which the summary is one long line: Python takes ten times as long to break it."""


class Recorder(Observer):
    """Keeps the evidence of a run of `ClusteredFL` in a folder, while it goes on.

    `rounds.jsonl` grows by lines, every other file is replaced whole or not at all.
    `docs/run-folder.md` says what each holds.

    Parameters
    ----------
    output_dir : Path or str
        Where run folders go; absolute, or beginning with ``~``.
    config : mapping, optional
        The app's own run config, kept as it is; nothing in it is required.
    resume : str
        The run to go on with: its folder, or the beginning of its id. Then `ClusteredFL.start`
        begins after its last round, with the same result as without the interruption.
    run_id : int, optional
        Flower's number of the run, of which the new folder's name gets the last digits.
    say : callable, optional
        Prints a text of several lines to the user; Flower's log if not given.
    may_change : sequence of str
        Further keys of ``config`` that may have other values when the run is resumed.

    Attributes
    ----------
    path : Path
        The run folder; made when the run starts.
    summary : dict
        The content of ``summary.json`` as it was last written.
    problem : str
        Why the folder lacks what the run did last, such as a full disk; empty if it does not.
    baselines : dict or None
        What `add_baseline` was given, as ``summary.json`` has it. None: nothing will come.

    Raises
    ------
    RunFolderError
        If the folder is relative, or there is no such run to resume.

    Examples
    --------
    >>> from cflower import ClusteredFL, Recorder
    >>> strategy = ClusteredFL(observers=[Recorder("~/cflower-runs", config={"lr": 0.1})])
    """

    def __init__(
        self,
        output_dir: Path | str,
        config: Mapping[str, Any] | None = None,
        *,
        resume: str = "",
        run_id: int | None = None,
        say: Callable[[str], None] | None = None,
        may_change: Sequence[str] = (),
    ) -> None:
        output = Path(output_dir).expanduser()
        if not output.is_absolute():
            raise RunFolderError(
                f"Got the folder {str(output_dir)!r} for runs, a relative one: under `flwr run` it "
                "would lie wherever the SuperLink was started. Give an absolute one, such as "
                f"{Path.home() / 'cflower-runs'}."
            )
        number = randbelow(10**6) if run_id is None else run_id
        self.path = find_run(output, resume) if resume else output / new_run_id(number)
        self.config, self.summary = dict(config or {}), dict[str, Any]()
        self.baselines: dict[str, dict[str, Any]] | None = None
        self._resumes, self._may_change = bool(resume), {*MAY_CHANGE, *may_change}
        self.say, self._terminal = say or say_by_log, say is not None
        self.problem = ""
        self._lock: IO[bytes] | None = None
        self._unwritten: list[str] = []
        self._splits: list[dict[str, Any]] = []
        self._clients: dict[str, dict[str, Any]] = {}
        self._written: dict[str, Weights] = {}

    def on_start(self, run: RunStart) -> Checkpoint | None:
        """Make the folder, or take it up where it was left.

        Raises
        ------
        RunFolderError
            If the folder cannot be written, none of its checkpoints is whole, or the run to
            resume was started with another config.
        """
        self._metric, self._seed = run.metric, run.settings["seed"]
        self._checkpoints = Checkpoints(
            self.path / CHECKPOINTS,
            lambda name, content: self._write(f"{CHECKPOINTS}/{name}", content),
        )
        begun = beginning(run, self.config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.path)
            checkpoint = self._take_up(begun) if self._resumes else None
            if checkpoint is None:
                self._write_json("config.json", begun)
            self._write_facts(run.facts)
        except RunFolderError:
            self._release()
            raise
        except OSError as error:
            self._release()
            raise RunFolderError(
                f"Cannot write the run folder {self.path}: {error.strerror}. Set output-dir to a "
                "folder that can be written."
            ) from None
        self.say(f"Run folder: {self.path}")
        return checkpoint

    def on_round(self, report: RoundReport) -> None:
        """Write everything that one round adds.

        Raises
        ------
        RunFolderError
            If that cannot be written. The next round tries to write both.
        """
        with self._writing(f"after round {report.server_round - 1}"):
            self._write_round(report)

    @contextmanager
    def _writing(self, whole: str) -> Iterator[None]:
        """Say in a sentence that the disk does not take what is written, and note it."""
        try:
            yield
        except OSError as error:
            self.problem = self.problem or (
                f"Cannot write the run folder {self.path}: {error.strerror}. It is whole as it was "
                f"{whole}: see to it that it can be written, and go on from there with "
                f"resume='{self.path.name}'"
            )
            raise RunFolderError(self.problem) from None
        self.problem = ""

    def _write_round(self, report: RoundReport) -> None:
        lines = [round_line(report, decision) for decision in report.decisions]
        for line, decision in zip(lines, report.decisions, strict=True):
            if decision.similarity is not None:
                self._write_similarity(decision)
            note_split(self._splits, line)
        for client, measured in report.measured.items():
            self._clients.setdefault(client, {}).update(numbers(measured.metrics))
        self._unwritten += [json.dumps(line) + "\n" for line in lines]
        append_lines(self.path / "rounds.jsonl", "".join(self._unwritten))
        self._unwritten.clear()
        self._write_tree(report.state, report.layout)
        self._write_summary(report.server_round, report)
        self._checkpoints.save(
            Checkpoint(report.server_round, report.state, report.failures, report.outstanding)
        )

    def on_end(self, report: FinalReport | None) -> None:
        """Write the final summary and the report, and tell what was found."""
        try:
            if report is not None:
                with self._writing(f"after round {report.num_rounds}"):
                    self._write_summary(report.num_rounds, report)
                self._tell()
        finally:
            self._release()

    def _release(self) -> None:
        """Let others write the folder."""
        if self._lock is not None:
            self._lock.close()

    def _tell(self) -> None:
        if self._terminal:
            view = run_view(self.summary, read_json(self.path, "tree.json"))
            self.say(as_text(view, get_terminal_size((100, 24)).columns))
        else:
            self.say(finding(self.summary))
            self.say(as_text(model_tables(self.summary)))
        self.say(self._report())
        self.say(f"Run folder: {self.path}")

    def add_baseline(self, name: Baseline, report: FinalReport) -> None:
        """Compare the finished run with another strategy's, of the same clients and rounds.

        Writes ``summary.json`` and the report anew, and tells what the comparison says.

        Parameters
        ----------
        name : {"federated", "isolated"}
            Conventional federated learning, or each client alone.
        report : FinalReport
            The other strategy's ``final_report``.
        """
        line = baseline_line(report, self._metric)
        self.baselines = (self.baselines or {}) | {name: line}
        self.summary["baselines"] = self.baselines
        if found := against(self.summary, line["clients"], self._metric):
            line |= found.as_json()
        with self._writing("without baselines"):
            self._write_json("summary.json", self.summary)
        self._report()
        lines = baseline_lines(self.summary)
        for text in lines if len(lines) == 2 else lines[-1:]:
            self.say(text)

    def _report(self) -> str:
        # A failed report must not fail the run.
        try:
            return f"Report: {write_report(self.path)}"
        except Exception as error:
            return f"No report was written ({error!r}); `cflower report {self.path}` tries again."

    def _take_up(self, begun: Mapping[str, Any]) -> Checkpoint | None:
        """The last checkpoint of a run that was interrupted, and what was told before it.

        None if it was interrupted before it had one: then it begins anew, in its folder.
        """
        before = read_json(self.path, "config.json")
        refuse_another(self.path.name, before, begun, self._may_change)
        if not any((self.path / CHECKPOINTS).glob("*.sha256")):
            self.say("The run was interrupted before its first checkpoint: from the beginning.")
            (self.path / "rounds.jsonl").unlink(missing_ok=True)
            return None
        checkpoint = self._checkpoints.newest(self.say)
        kept = self._kept(checkpoint.server_round)
        self.say(f"Going on after round {checkpoint.server_round}.")
        self._write("rounds.jsonl", "".join(json.dumps(line) + "\n" for line in kept).encode())
        for line in kept:
            for client, metrics in line["clients"].items():
                self._clients.setdefault(client, {}).update(metrics)
            note_split(self._splits, line)
        return checkpoint

    def _kept(self, server_round: int) -> list[Mapping[str, Any]]:
        """The lines of ``rounds.jsonl`` up to a round."""
        path = self.path / "rounds.jsonl"
        kept = [line for line in read_lines(path) if line["round"] <= server_round]
        if missing := set(range(1, server_round + 1)) - {line["round"] for line in kept}:
            raise RunFolderError(
                f"Cannot resume {self.path.name}: {path} lacks round {min(missing)} of the "
                f"{server_round} that its checkpoint has. Copy the whole run folder, or start the "
                "run anew."
            )
        return kept

    def _write_facts(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """``examples.json`` and ``clients.json``: what the clients told of their data, if they did.

        With the first a model can be built again; the second has what a simulation may show.
        """
        looks = [DataSpec.of(told) for told in facts.values() if "input-shape" in told]
        if looks:
            self._write_json("examples.json", looks[0]._asdict())
        told = {name: data_line(fact) for name, fact in facts.items() if data_line(fact)}
        if told:
            classes = next(iter(facts.values())).get("class-names", [])
            content = {"class_names": list(classes), "clients": told}
            self._write("clients.json", json.dumps(content).encode())

    def _write_tree(self, state: CFLState, layout: Layout) -> None:
        """``tree.json`` and the models and edges that changed since they were last written."""
        tree = state.tree
        for cluster in tree.clusters.values():
            if self._written.get(cluster.name) is cluster.model:
                continue
            self._write_arrays(f"models/{cluster.name}.safetensors", layout.arrays(cluster.model))
            if cluster.edge and cluster.name not in self._written:
                self._write_arrays(f"edges/{cluster.name}.safetensors", cluster.edge)
            self._written[cluster.name] = cluster.model
        for cluster in tree.clusters.values():
            written = f"general/{cluster.name}"
            if cluster.general is not None and self._written.get(written) is not cluster.general:
                self._write_arrays(f"{written}.safetensors", layout.arrays(cluster.general))
                self._written[written] = cluster.general
        self._write_json("tree.json", tree_lines(state))
        for path in self.path.glob("*/0*.safetensors"):
            if path.parent.name in FOLDERS and path.stem not in tree.clusters:
                path.unlink()  # of children that were joined again

    def _write_summary(self, num_rounds: int, report: RoundReport | FinalReport) -> None:
        """``summary.json``, also as `summary`."""
        tree, failures = report.state.tree, report.failures
        final = report if isinstance(report, FinalReport) else None
        results = final.clients if final else {}
        clients = {name: dict(measured) for name, measured in self._clients.items()}
        if final:
            served = {n: served_line(r, final, self._metric.name) for n, r in results.items()}
            clients |= served
        placed = {
            name: {"cluster": tree.leaf_of(name).name, **clients.get(name, {})}
            for name in tree.clients
        }
        groups = true_groups(results)
        self.summary = {
            "run_id": self.path.name,
            "finished": final is not None,
            "rounds": num_rounds,
            "seed": self._seed,
            "metric": self._metric._asdict(),
            "selection": final.selection if final else "leaf",
            "clusters": {leaf.name: list(leaf.members) for leaf in tree.leaves},
            "splits": self._splits,
            "moves": [move._asdict() for move in report.state.moves],
            "common_rounds": tree.root.rounds,
            "clients": placed,
            "metrics": final.metrics if final else {},
            "groups": groups or None,
            "adjusted_rand_index": rand_index(groups, tree) if groups else None,
            "baselines": self.baselines,
            "problems": {name: failures.problems[name] for name in in_order(failures.problems)},
            "excluded": {name: failures.excluded[name] for name in in_order(failures.excluded)},
        }
        self._write_json("summary.json", self.summary, indent=1 if len(placed) < MANY else None)

    def _write_similarity(self, decision: Decision) -> None:
        name = f"similarity/{decision.server_round}-{decision.cluster}.npz"
        assert decision.similarity is not None
        content = BytesIO()
        np.savez(
            content,
            similarity=decision.similarity.astype(np.float32),
            clients=np.array(decision.clients),
        )
        self._write(name, content.getvalue(), lasting=False)

    def _write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        content = save({key: np.ascontiguousarray(a) for key, a in arrays.items()})
        self._write(name, content, lasting=False)  # they are in the checkpoint too

    def _write_json(self, name: str, content: Any, *, indent: int | None = 1) -> None:
        self._write(name, (json.dumps(content, indent=indent) + "\n").encode())

    def _write(self, name: str, content: bytes, *, lasting: bool = True) -> None:
        replace_file(self.path / name, content, lasting=lasting)
