"""`Recorder`: writes the run folder."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from html import escape
from io import BytesIO
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np

from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.state import CFLState
from cflower.errors import RunFolderError
from cflower.messages.claims import most_common
from cflower.messages.client_names import PREPARATION
from cflower.ordering import line as one_line
from cflower.ordering import listed
from cflower.recording.progress import print_to_log
from cflower.recording.resume import (
    MAY_CHANGE,
    app_name,
    check_same_run,
    new_run_id,
    other_versions,
    start_record,
)
from cflower.recording.serialization import data_line, round_line, tree_record, write_models
from cflower.recording.summary import RunSoFar
from cflower.runs.answer import answer
from cflower.runs.checkpoint import Checkpoints
from cflower.runs.findings import finding, in_one_line, way_lines
from cflower.runs.reading import SUBFOLDERS, check_folder, read_file
from cflower.runs.records import (
    BaselineLine,
    ClientsData,
    Config,
    Examples,
    File,
    FileRecord,
    Summary,
)
from cflower.runs.report import REPORT, write_report
from cflower.runs.run_files import find_run, read_lines, read_record
from cflower.runs.tables import as_text, run_view
from cflower.runs.ways import BASELINES, Ways, baseline_line
from cflower.runs.writing import PRIVATE_FOLDER, append_lines, locked, make_last, replace_file
from cflower.settings import check_choice
from cflower.strategy.observers import Checkpoint, Observer, RunStart
from cflower.strategy.reports import FinalReport, RoundReport
from cflower.strategy.results import html_table
from cflower.tables.agreement import input_names

TIMES = 60
"""How many times as long as the state took to write the run goes on before it is written again:
then it takes at most a sixtieth of the time."""
REPORT_FIRST, REPORT_EVERY, REPORT_TIMES = 60.0, 10.0, 200
"""While the run goes on, the report is written after its first minute, since the first one loads
what it needs, then as often as its page reloads itself (seconds), and in at most a 200th of the
time."""
MANY_MEMBERS = 1000
"""Clients from which on the summary is one line and written with the checkpoints only, the report
is written at the end only, a line of ``rounds.jsonl`` has the members of its cluster only where
they changed, and only the similarity matrix of a split is kept (of 1,000 clients it has four
megabytes)."""
BROKEN_OFF = (
    "The run ended before its last round. {path} has all {rounds} finished rounds; "
    "Recorder(resume={name!r}) goes on from there."
)


class Recorder(Observer):
    """Writes the run folder of a `ClusteredFL` run.

    Every round adds lines to `rounds.jsonl` and replaces `summary.json` and `tree.json`. A
    checkpoint, and from 1,000 clients on also these two, is written after the first round, when the
    clusters change, at the end, and between these as often as `checkpoint_interval` says. Each file
    is replaced atomically. They are described in `docs/reference/run-folder.md`.

    Parameters
    ----------
    output_dir : Path or str
        The folder of run folders; absolute, or beginning with ``~``.
    config : mapping, optional
        The app's own run config, stored as it is; no key is required.
    name : str
        A name of the run, for `cflower list` and the report.
    app : str
        The app's name; by default that in the ``pyproject.toml`` of the Flower app that runs.
    resume : str
        The run to resume: its folder, or the beginning of its id. `ClusteredFL.start` then
        continues after its last round, with the same result as without the interruption.
    run_id : int, optional
        Flower's number of the run, for the folder's name.
    say : callable, optional
        Prints a text of several lines to the user; by default Flower's log.
    may_change : sequence of str
        Further keys of ``config`` that may have other values when the run is resumed.
    checkpoint_interval : int
        Rounds from one checkpoint to the next, from which an interrupted run goes on. 0: as often
        as it takes at most a sixtieth of the time.

    Attributes
    ----------
    path : Path
        The run folder; made when the run starts.
    problem : str
        Why the last round is not in the folder, such as a full disk; "" if it is.
    baselines : dict or None
        The baselines in ``summary.json``, None for each that is still to come; None: there will be
        none.
    num_bytes : int or None
        The bytes of the arrays that the run sent, for ``summary.json``, if somebody counts them.

    Raises
    ------
    RunFolderError
        If the folder is relative under `flwr run`, or there is no such run to resume.

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
        name: str = "",
        app: str = "",
        resume: str = "",
        run_id: int | None = None,
        say: Callable[[str], None] | None = None,
        may_change: Sequence[str] = (),
        checkpoint_interval: int = 0,
    ) -> None:
        output = Path(output_dir).expanduser()
        # Flower starts a ServerApp in a working folder that is not the user's.
        if not Path(sys.argv[0]).name.startswith(("flwr", "flower")):
            output = output.absolute()
        if not output.is_absolute():
            raise RunFolderError(
                f"Got the folder {str(output_dir)!r} for runs, a relative one: under `flwr run` it "
                "would lie wherever the SuperLink was started. Give an absolute one, such as "
                f"{Path.home() / 'cflower-runs'}."
            )
        number = randbelow(10**6) if run_id is None else run_id
        self.path = find_run(output, resume) if resume else output / new_run_id(number)
        # As JSON has it, and a resumed run reads it: tuples as lists, paths and the like as texts.
        text = json.dumps(dict(config or {}), default=str, ensure_ascii=False)
        self.config = json.loads(text.encode(errors="replace"))  # such as a path that is no text
        self._summary: Summary | None = None
        self._labels = {"app": one_line(app or app_name()), "name": one_line(name or "")}
        self.baselines: dict[str, BaselineLine | None] | None = None
        self.num_bytes: int | None = None
        self._resumes, self._may_change = bool(resume), {*MAY_CHANGE, *may_change}
        self.say, self.problem = say or print_to_log, ""
        self._interval, self._next, self._saved = checkpoint_interval, 0.0, 0
        self._report_due = 0.0
        self._shape: object = None
        self._unsaved: RoundReport | None = None
        self._lock = ExitStack()
        self._unwritten: dict[str, bytes] = defaultdict(bytes)
        self._not_lasting = set[Path]()
        self._so_far = RunSoFar()
        self._classes = list[str]()

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json`` as it was last written; empty before the first round."""
        return self._summary.model_dump() if self._summary else {}

    def preparation_before(self) -> dict[str, Any] | None:
        """The preparation of tables in the run to resume, if it has one."""
        has_one = self._resumes and (self.path / File.EXAMPLES).is_file()
        return read_record(self.path, Examples).preparation if has_one else None

    def on_start(self, run: RunStart) -> Checkpoint | None:
        """Make the folder, or continue with the one to resume."""
        if self._summary or ((self.path / File.CONFIG).exists() and not self._resumes):
            raise RunFolderError(
                f"The run folder {self.path} has a run already: make a new Recorder for every run."
            )
        self._run = run
        self._checkpoints = Checkpoints(self.path / File.CHECKPOINTS)
        record, checkpoint = start_record(run, self.config, self._labels), None
        try:
            with ExitStack() as lock:  # it is released if the run is refused
                self.path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
                for folder in SUBFOLDERS:
                    check_folder(self.path / folder)
                lock.enter_context(locked(self.path))
                if self._resumes:
                    checkpoint = self._resumed(record)
                if checkpoint is None:
                    self._checkpoints.refer_to(File.CONFIG, self._write(record))
                prepared = run.settings.get("train-config", {}).get(PREPARATION)
                self._write_facts(run.facts, json.loads(prepared) if prepared else None)
                self._lock = lock.pop_all()
        except OSError as error:
            raise RunFolderError(
                f"Cannot write the run folder {self.path}: {error.strerror}. Set output-dir to a "
                "folder that can be written."
            ) from None
        self._report_due = time.monotonic() + REPORT_FIRST
        self.say(f"Run folder: {self.path}")
        return checkpoint

    def on_round(self, report: RoundReport) -> None:
        """Write what one round adds; if that fails, the next round tries to write both."""
        self._unsaved = report
        with self._writing():
            many = len(report.state.tree.clients) >= MANY_MEMBERS
            for decision in report.decisions:
                line = round_line(report, decision)
                known = many and self._so_far.members.get(line.cluster) == line.members
                self._unwritten[File.ROUNDS] += line.as_json(exclude=["members"] if known else [])
                self._so_far.add(line)
                if decision.clients and (decision.outcome is Outcome.SPLIT or not many):
                    name, content = similarity_file(decision)
                    self._unwritten[name] = content
            for name, content in tuple(self._unwritten.items()):
                if name == File.ROUNDS:
                    append_lines(self.path / name, content)
                else:
                    replace_file(self.path / name, content, lasting=False)
                self._not_lasting.add(self.path / name)
                self._checkpoints.refer_to(name, self._unwritten.pop(name))
            last = report.server_round == report.num_rounds
            due = time.monotonic() >= self._next
            if self._interval:
                due = report.server_round >= self._saved + self._interval
            if last or due or shape_of(report.state) != self._shape:
                self._save_state()
            elif not many:
                self._write_summary(report.server_round, report, lasting=False)
        began = time.monotonic()
        if began >= self._report_due and not (many or last):
            self._write_report(live=True)
            took = time.monotonic() - began
            self._report_due = began + max(REPORT_EVERY, REPORT_TIMES * took)

    def _save_state(self) -> None:
        """Write the state after the last round, unless it is written already."""
        if self._unsaved is None:
            return
        began, report = time.monotonic(), self._unsaved
        make_last(self._not_lasting)
        self._not_lasting.clear()
        self._write(tree_record(report.state))
        self._write_summary(report.server_round, report)
        self._checkpoints.save(
            Checkpoint(
                report.server_round,
                report.state,
                report.failures,
                report.outstanding,
            )
        )
        self._saved, self._shape, self._unsaved = report.server_round, shape_of(report.state), None
        now = time.monotonic()
        self._next = now + TIMES * (now - began)

    @contextmanager
    def _writing(self, then: str = "") -> Iterator[None]:
        """Turn an error of the disk into `problem` and a `RunFolderError`."""
        try:
            yield
        except OSError as error:
            self.problem = self.problem or (
                f"Cannot write the run folder {self.path}: {error.strerror}. Its last checkpoint "
                f"is of round {self._saved}{then}: make it writable and resume the run from there "
                f"with resume='{self.path.name}'"
            )
            raise RunFolderError(self.problem) from None
        self.problem = ""

    def on_end(self, report: FinalReport | None) -> None:
        try:
            with self._writing():
                self._save_state()
            if report is not None:
                with self._writing():
                    write_models(self.path, report.state, self._run.layout)
                    summary = self._write_summary(report.num_rounds, report)
                    self._checkpoints.close()
                written = self._write_report(live=self._measures_baselines)
                self.say(as_text(run_view(summary, tree_record(report.state).clusters)))
                self.say(written)
                return
            if (self.path / REPORT).exists():  # it would reload itself
                self._write_report()
            if self._summary and self._labels["app"] != "cflower":
                rounds, name = self._summary.rounds, self.path.name
                self.say(BROKEN_OFF.format(path=self.path, rounds=rounds, name=name))
        finally:
            self._lock.close()

    def _repr_html_(self) -> str:
        if not self._summary:
            return f"<p>{escape(str(self.path))}: not begun.</p>"
        rows = [(name, listed(members)) for name, members in self._summary.clusters.items()]
        text = f"<pre>{escape(finding(self._summary))}</pre>"
        text += html_table(("cluster", "clients"), rows)
        return f"{text}<p>Run folder, with report.html: {escape(str(self.path))}</p>"

    def add_baseline(self, name: str, report: FinalReport, num_bytes: int | None = None) -> None:
        """Compare the finished run with the ``final_report`` of a baseline, and print the result.

        The baseline must have had the same clients and trainings. ``num_bytes`` were sent for it.
        """
        check_choice("name", name, BASELINES)
        assert self._summary is not None  # of a finished run
        line = baseline_line(report, Ways(self._summary), num_bytes)
        self.baselines = {**(self.baselines or {}), name: line}
        more = {"baselines": self.baselines, "bytes": self.num_bytes}
        self._summary = self._summary.model_copy(update=more)
        with self._writing(", without baselines"):
            self._write(self._summary)
        self._write_report(live=self._measures_baselines)
        ways = Ways(self._summary)
        lines = {one["key"]: one for one in way_lines(ways)}
        self.say(as_text(in_one_line(lines[name], ways.metric)))
        if not self._measures_baselines:
            self.say(as_text(answer(ways)))

    @property
    def _measures_baselines(self) -> bool:
        return None in (self.baselines or {}).values()

    def _write_report(self, *, live: bool = False) -> str:
        try:
            return f"Report: {write_report(self.path, live=live)}"
        except Exception as error:  # it must not fail the run
            return f"No report was written ({error!r}); `cflower report {self.path}` tries again."

    def _resumed(self, record: Config) -> Checkpoint | None:
        """The last checkpoint of an interrupted run; None if it had none yet."""
        before = read_record(self.path, Config)
        check_same_run(self.path.name, before, record, self._may_change)
        path = self.path / File.ROUNDS
        if not any((self.path / File.CHECKPOINTS).glob("*.sha256")):
            self.say("The run was interrupted before its first checkpoint: it starts anew.")
            path.unlink(missing_ok=True)
            return None
        checkpoint = self._checkpoints.newest(
            lambda damaged: self.say(f"{damaged} Using the one before it."), whole_run=True
        )
        last, planned = checkpoint.server_round, record.num_rounds
        if 0 < planned < last:
            raise RunFolderError(
                f"Got num-server-rounds={planned}, but the run {self.path.name} has {last} rounds: "
                f"give {last} or more to resume it."
            )
        if planned == last and self.baselines is None:
            self.baselines = read_record(self.path, Summary).baselines
        self.say(self._how_to_go_on(last, planned))
        if other := other_versions(before.versions, record.versions):
            self.say(other)
        self._saved, self._shape = last, shape_of(checkpoint.state)
        # Later lines are of rounds that are trained again.
        if path.is_file():
            whole = read_file(path)[: self._checkpoints.refer_to(File.ROUNDS, b"")]
            replace_file(path, whole)
        self._write(tree_record(checkpoint.state))
        for line in read_lines(path):
            self._so_far.add(line)
        return checkpoint

    def _how_to_go_on(self, last: int, planned: int) -> str:
        if last != planned:
            return f"Going on after round {last}."
        if not read_record(self.path, Summary).finished:
            return f"Going on after round {last}, the last one: the end of the run is left to do."
        return (
            f"The run has finished all {last} rounds: only its end, with the final evaluation, is "
            "repeated. To train further, resume it with more rounds, such as "
            f"num-server-rounds={2 * last}."
        )

    def _write_facts(
        self, facts: Mapping[str, Mapping[str, Any]], preparation: dict[str, Any] | None
    ) -> None:
        """Write ``examples.json`` and ``clients.json``, with the classes of most clients that
        described their data.
        """
        described = [one for one in facts.values() if "input-shape" in one]
        if described:
            spec = most_common(described)
            self._classes = list(spec.class_names)
            shape = [len(input_names(preparation))] if preparation else list(spec.input_shape)
            self._write(Examples.of(spec, input_shape=shape, preparation=preparation))
        clients = {name: line for name, one in facts.items() if (line := data_line(one))}
        if clients:
            classes = list(most_common(facts[name] for name in clients).class_names)
            self._write(ClientsData(class_names=classes, clients=clients), indent=None)

    def _write_summary(
        self, num_rounds: int, report: RoundReport | FinalReport, *, lasting: bool = True
    ) -> Summary:
        self._summary = self._so_far.summary(
            report,
            run_id=self.path.name,
            rounds=num_rounds,
            seed=self._run.settings["seed"],
            metric=report.metric._replace(above_one=False),
            baselines=self.baselines,
            bytes=self.num_bytes,
            class_names=self._classes,
        )
        indent = 1 if len(report.state.tree.clients) < MANY_MEMBERS else None
        self._write(self._summary, indent=indent, lasting=lasting)
        return self._summary

    def _write(self, record: FileRecord, *, indent: int | None = 1, lasting: bool = True) -> bytes:
        written = record.as_json(indent)
        replace_file(self.path / record.FILE, written, lasting=lasting)
        return written


def shape_of(state: CFLState) -> object:
    """The clusters and their members: equal as long as neither changes.

    Of many clients only the former: Algorithm 4 may place some in every round.
    """
    tree = state.tree
    clusters = [(c.name, c.children, c.trial, c.undone) for c in tree.clusters.values()]
    if len(tree.clients) >= MANY_MEMBERS:
        return clusters
    return clusters, [c.members for c in tree.clusters.values()], dict(tree.unassigned)


def similarity_file(decision: Decision) -> tuple[str, bytes]:
    content, clients = BytesIO(), np.array(decision.clients)
    assert decision.similarity is not None
    np.savez(content, similarity=decision.similarity.astype(np.float32), clients=clients)
    return f"similarity/{decision.server_round}-{decision.cluster}.npz", content.getvalue()
