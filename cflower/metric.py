"""A metric: its name shows whether higher values are better, and how its values are shown."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from cflower.errors import ConfigError


def named(words: str) -> frozenset[str]:
    """Words separated by spaces, as a set."""
    return frozenset(words.split())


LOWER_IS_BETTER = named(
    """
    loss losses logloss nll perplexity ppl error err mistake misclassification misclassified
    mae mse rmse nrmse nmse nmae rmsle msle mape smape wape wmape mspe rmspe mdae medae mdape mase
    rmsse rmsd mad mre rse rrse rae nme mpjpe epe ade fde crps huber logcosh hinge poisson pinball
    ce bce cce sce xent crossentropy brier deviance deviation ece mce bpc bpb bpd bpw aic bic
    wer cer mer ter der wil eer hter far frr fdr fpr fnr fallout dcf mindcf false miss
    kl kld kldiv jsd divergence distance hamming levenshtein hausdorff hd assd chamfer wasserstein
    emd mmd fid kid fvd fad mifid lpips dists niqe brisque ergas mahalanobis bouldin regret cost
    latency seconds sec secs lost squarederror absoluteerror time duration runtime ms
    """
)
"""Words in the names of metrics that are better the lower they are."""
HIGHER_IS_BETTER = named(
    """
    accuracy acc top top1 correct precision recall f1 f2 fbeta fscore fmeasure auc auroc auprc roc
    ap map dcg ndcg mrr hit iou miou jaccard dice dsc overlap sensitivity specificity
    tpr tnr ppv npv
    true kappa mcc matthews corrcoef correlation pearson pearsonr spearman spearmanr kendall
    rsquared explained concordance cindex ssim psnr snr sdr sdri pesq stoi uqi vif wip bleu
    sacrebleu rouge meteor bertscore bleurt comet mauve chrf em exactmatch likelihood loglik
    loglikelihood elbo r2 similarity reward return gain gini ari nmi ami homogeneity completeness
    silhouette purity dunn score quality success win coverage throughput fps persecond preserved
    predictivevalue
    """
)
"""Words in the names of metrics that are better the higher they are, unless one of
`LOWER_IS_BETTER` is in the name too."""
WITH_ERRORS = frozenset({"d2", "skill", "persecond", "persec"})
"""Words that make a metric better the higher it is, also with a word of `LOWER_IS_BETTER`."""
LIKELIHOODS = frozenset({"likelihood", "loglik", "loglikelihood"})
NEGATED, COUNTED = frozenset({"neg", "negative"}), frozenset({"true", "false"})
"""Words that turn the direction of an error or a likelihood, unless of the others one is there."""
SHARES = {
    *("accuracy", "acc", "top", "precision", "recall", "f1", "auc", "auroc", "auprc", "iou"),
    *("miou", "jaccard", "dice", "sensitivity", "specificity"),
}
"""Words in the names of metrics that are shares of 1 (or of 100), shown as percentages."""
ACCURACY = ({"accuracy", "acc"}, {"top1"})
LEADERS = (
    *ACCURACY,
    {"f1", "fscore", "fmeasure", "fbeta", "auc", "auroc", "auprc", "map", "miou", "iou", "dice"},
    {"jaccard", "mcc", "kappa", "ndcg", "precision", "recall"},
    {"loss", "nll", "logloss", "crossentropy", "ce", "bce", "perplexity"},
    {"rmse"},
    {"mse", "squarederror"},
    {"mae", "absoluteerror"},
    {"error", "mape", "smape", "r2", "brier"},
)
"""Words of the metrics that may lead where nobody chose one, the first choice first."""
TRAINING = frozenset({"train", "training"})
"""Words of metrics that are not of held-out examples."""
DIRECTION = (
    "Got metric={name!r}, but whether higher or lower values of it are better is not known: give "
    "higher_is_better=True or higher_is_better=False too."
)


class Metric(NamedTuple):
    """The metric that leads in tables, charts and comparisons of a run."""

    name: str = "accuracy"
    higher_is_better: bool = True
    above_one: bool = False
    """Whether clients send values above 1, such as per cent: then they are shown as they are."""

    @classmethod
    def of(cls, name: str, higher_is_better: bool | None = None) -> "Metric":
        """A metric by its name, which decides the direction if that is None.

        Raises a ConfigError for a name that does not show it.

        >>> Metric.of("val_rmse").in_full, Metric.of("answer_f1").in_full
        ('val_rmse (lower is better)', 'answer_f1')
        """
        if higher_is_better is None:
            higher_is_better = direction_of(name)
        if higher_is_better is None:
            raise ConfigError(DIRECTION.format(name=name))
        return cls(name, higher_is_better)

    def as_json(self) -> dict[str, Any]:
        """The metric in ``summary.json``, whose values show whether they are above 1."""
        return {"name": self.name, "higher_is_better": self.higher_is_better}

    @property
    def in_full(self) -> str:
        """The name, and the direction unless it is a share, such as accuracy."""
        if is_share(self.name):
            return self.name
        return f"{self.name} ({'higher' if self.higher_is_better else 'lower'} is better)"

    @property
    def title(self) -> str:
        """The name as sentences have it."""
        return "Brier score" if self.name == BRIER.name else self.name

    @property
    def share(self) -> bool:
        """Whether values are shares of 1, shown as percentages."""
        return not self.above_one and is_share(self.name)

    def seen(self, values: Iterable[float]) -> "Metric":
        """The metric, no share any more if most of these values are above 1.

        >>> Metric().seen([93.5, 97.0, 0.5]).in_words(93.5), Metric().seen([0.5, 1.0]).share
        ('93.5', True)
        """
        values = list(values)
        above = 2 * sum(value > 1 for value in values) > len(values)
        return self._replace(above_one=self.above_one or above)

    def in_words(self, value: float | None) -> str:
        """A value as shown to users; a dash for None.

        >>> Metric().in_words(0.975), Metric("perplexity", False).in_words(26.6)
        ('97.5%', '26.6')
        """
        if value is None:
            return "-"
        return f"{value:.1%}" if self.share and value <= 1 else f"{value:.4g}"

    def best(self, values: Iterable[float]) -> float | None:
        """The best value; None if there are no values."""
        return (max if self.higher_is_better else min)(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """The worst value; None if there are no values."""
        return (min if self.higher_is_better else max)(values, default=None)


BRIER = Metric("brier", higher_is_better=False)
"""The mean squared error of the classes' probabilities (Brier 1950), from 0 to 2. It is a proper
score, as a loss is, but a few confident errors do not make most of it."""


def leader_among(names: Iterable[str], choices: Sequence[Collection[str]] = LEADERS) -> str:
    """The first choice to lead among the names of metrics; empty if there is none.

    Of several names with such a word the shortest leads.

    >>> leader_among(["train_acc", "top5_accuracy", "val_acc", "accuracy_loss"])
    'val_acc'
    >>> leader_among(["runtime", "mse", "val_loss"]), leader_among(["samples_per_second"])
    ('val_loss', '')
    """
    places = {}
    for name in names:
        words = words_in(name)
        deciding = words & LOWER_IS_BETTER or words & HIGHER_IS_BETTER
        chosen = [not deciding.isdisjoint(choice) for choice in choices]
        if any(chosen) and not words & TRAINING:
            places[name] = chosen.index(True), "top" in words, len(name), name
    return min(places, key=places.__getitem__, default="")


def direction_of(name: str) -> bool | None:
    """Whether higher values of a metric are better, by the words in its name; None if unknown.

    >>> direction_of("neg_mean_squared_error"), direction_of("eval_nll"), direction_of("my_metric")
    (True, False, None)
    """
    words = words_in(name)
    negated = not words.isdisjoint(NEGATED) and words.isdisjoint(COUNTED)
    if words & WITH_ERRORS:
        return True
    if words & LOWER_IS_BETTER:
        return negated
    if words & HIGHER_IS_BETTER:
        return not (negated and words & LIKELIHOODS)
    return None


def is_share(name: str) -> bool:
    """Whether a name is that of a share of 1 (or of 100)."""
    words = words_in(name)
    return not words.isdisjoint(SHARES) and words.isdisjoint(LOWER_IS_BETTER)


@lru_cache(maxsize=2**12)  # the same names come from every client
def words_in(name: str) -> frozenset[str]:
    """The words of a metric's name in lower case, and each two that follow each other as one.

    Also without a final number or plural s.

    >>> sorted(words_in("valMAE/f1"))
    ['f', 'f1', 'mae', 'maef', 'maef1', 'val', 'valmae']
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    words = [word for word in re.split(r"[\W_]+", spaced.lower()) if word]
    words = [*words, *map("".join, pairwise(words))]
    return frozenset({*words, *(re.sub(r"s$|\d+$", "", word) for word in words)})
