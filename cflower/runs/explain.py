"""`cflower explain`: why each split happened or did not, and what other thresholds would do."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from cflower.algorithm.criteria import NormCriterion, Outcome
from cflower.config import RunConfig
from cflower.errors import ConfigError, RunFolderError
from cflower.runs.record import Line, RunRecord, counted, finding, is_judgement
from cflower.runs.whatif import first_splits, margins, matrix_for, rejudged, rule_of, split_bounds

ASKED = ("eps1", "eps2", "gamma-max", "linkage", "min-cluster-size")
"""Keys that can be asked about without training again."""


def explanation(run: RunRecord, asked: Mapping[str, Any] | None = None) -> str:
    """Everything `cflower explain` prints of a run.

    Parameters
    ----------
    run : RunRecord
    asked : mapping, optional
        Other values for the keys in `ASKED`.

    Raises
    ------
    ConfigError
        If another key is asked about, or a value is wrong.
    RunFolderError
        If the run has no round yet.
    """
    if not run.lines:
        raise RunFolderError(f"The run {run.name} has finished no round yet.")
    used = rule_of(run.criterion)
    parts = [finding(run.summary)]
    if asked:
        given = rule_of({**run.criterion, **checked(asked)})
        named = ", ".join(f"{key} = {value}" for key, value in asked.items())
        parts.append(f"Asked: what if {named}?")
        parts += [what_if(run, name, given) for name in run.by_cluster]
        parts.append(
            "Each answer takes the recorded run up to that round: from a split that came earlier, "
            "later or not at all, a new run would go another way."
        )
    else:
        parts += ["\n".join(story(run, name, used)) for name in run.by_cluster]
    return "\n\n".join(parts)


def checked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The values asked about, refused like any run-config value if wrong."""
    for key in asked:
        if key not in ASKED:
            raise ConfigError(
                f"{key!r} needs a new run: from what was recorded, only {', '.join(ASKED)} can be "
                "asked about."
            )
    values = RunConfig.read(asked).as_keys()
    return {key: values[key] for key in asked}


def story(run: RunRecord, cluster: str, used: NormCriterion) -> Iterator[str]:
    """The paragraph of one cluster: its verdicts, and how far it was from another one."""
    lines = run.by_cluster[cluster]
    first, last = lines[0]["round"], lines[-1]["round"]
    size = counted(len(lines[-1]["members"]), "client")
    split = lines[-1]["decision"] == Outcome.SPLIT
    end = "into " + " and ".join(lines[-1]["children"]) if split else "was not split"
    if cluster not in run.clusters:
        end = "was joined with its other parts again"
    verdict = f"split in round {last} {end}" if split else end
    yield f"Cluster {cluster} ({size}, {span(first, last)}): {verdict}."
    for decision, run_of in groupby(lines, key=lambda line: str(line["decision"])):
        same = list(run_of)
        yield f"  {span(same[0]['round'], same[-1]['round'])}, {decision}: {told(same)}"
    for line in run.trials.get(cluster, ()):
        if is_judgement(line):
            yield f"  {span(line['round'], line['round'])}, {line['decision']}: {line['reason']}"
    if run.criterion["name"] != "norms":
        return  # there were no thresholds, or they moved from round to round
    if split and lines[-1]["alpha_cross"] is not None:
        yield f"  {split_bounds(lines[-1])}"
    for margin in margins(run, cluster, used):
        sign = "above" if margin.key == "eps1" else "below"
        known = (
            "whose sides were recorded"
            if margin.recorded
            else "whose sides were not recorded, so whether they are apart enough is not known"
        )
        yield (
            f"  With {margin.key} {sign} {margin.value:.4g} alone the norms would have allowed a "
            f"split in round {margin.server_round}, {known}."
        )


def told(lines: list[Line]) -> str:
    """The verdict of several rounds: the last one's sentence, and where its figures came from."""
    first, last = lines[0], lines[-1]
    if len(lines) == 1 or first["reason"] == last["reason"]:
        return str(last["reason"])
    return (
        f"mean norm {first['mean_norm']:.3g} to {last['mean_norm']:.3g}, largest "
        f"{first['max_norm']:.3g} to {last['max_norm']:.3g}; at last, {last['reason']}"
    )


def what_if(run: RunRecord, cluster: str, given: NormCriterion) -> str:
    """One sentence: when these thresholds would have split a cluster, and when it did."""
    lines = run.by_cluster[cluster]
    recorded = next((ln["round"] for ln in lines if ln["decision"] == Outcome.SPLIT), None)
    was = f"in the run: round {recorded}" if recorded else "in the run: not split"
    found = first_splits(run, cluster, given)
    if not found:
        last = rejudged(lines[-1], given, matrix_for(run, lines[-1]))
        beyond = f"; what came after round {recorded} is not known" if recorded else ""
        return f"Cluster {cluster}: would not have split ({was}): {last.reason}{beyond}."
    said = [
        f"{'would' if first.verdict.outcome else 'might'} have split in round "
        f"{first.server_round}: {first.verdict.reason}."
        for first in found
    ]
    return f"Cluster {cluster} ({was}): " + "\n  For certain it ".join(said)


def span(first: int, last: int) -> str:
    """Rounds in words.

    >>> span(1, 6), span(7, 7)
    ('rounds 1 to 6', 'round 7')
    """
    return f"rounds {first} to {last}" if last > first else f"round {last}"
