"""Labels that are wrong: where a probe is sure, it contradicts them as often as elsewhere.

Samples that are hard are contradicted where a probe is unsure; labels that were drawn anew are
everywhere. Over Gaussians that overlap (2 to 10 classes), MNIST, Fashion-MNIST and pairs of its
classes, each clean and with 5 to 40 % of the labels drawn anew, the limits below tell one from the
other; 5 % are sometimes missed.
"""

import torch

from project.doctor import Finding, Skip, Subject, check, passed, warn
from project.doctor.checks.data_probe import Answers, answers, material
from project.doctor.checks.data_views import first_few

# How much better than by the largest class a probe must be: (accuracy - share) / (1 - share).
ADVANTAGE = 0.4
# Of the surest tenth and fifth as of the surest half: 0.75 and more with noise, up to 0.6 without.
FLAT = 0.7
# For probes of this accuracy: part of the samples, least share of it that is contradicted, least
# relation to the share of all, least number.
SURE = 0.8
LIMITS = ((0.25, 0.03, 0.35, 4), (0.5, 0.042, 0.49, 6))


@check("data", seconds=8)
def label_noise(subject: Subject) -> Finding:
    """Labels agree with a probe where it is sure."""
    found, rows, _, _ = material(subject, "train")
    answer = max(answers(subject), key=lambda one: one.accuracy)
    largest = float(torch.bincount(answer.labels).max()) / len(answer.labels)
    if answer.accuracy - largest < ADVANTAGE * (1 - largest):
        raise Skip("a quick probe knows too little of these classes")
    told = (
        f"{_contradicted(answer, 0.25):.1%} of the labels that are easy to tell contradict a probe"
    )
    share = max(_everywhere(answer), _where_sure(answer))
    if share == 0:
        return passed(told)
    wrong = answer.classes != answer.labels
    order = torch.where(wrong, answer.margins, answer.margins.min() - 1).argsort(descending=True)
    names = [
        f"{found.name(int(rows[i]))} ({int(answer.labels[i])}, rather {int(answer.classes[i])})"
        for i in order[: max(1, int(share * len(rows)))].tolist()
    ]
    return warn(
        f"{told}, as if about {share:.0%} of all were wrong: {first_few(names, 5)}",
        "Look at these. If they are wrong, so are others: see where the labels are from.",
    )


def _everywhere(answer: Answers) -> float:
    """Return the share that is contradicted, 0 if it falls where the probe is surer."""
    tenth, fifth, half = (_contradicted(answer, part) for part in (0.1, 0.2, 0.5))
    few = min(tenth, fifth) < 0.05 or fifth * 0.2 * len(answer.labels) < 6
    return 0.0 if few or (tenth + fifth) / 2 < FLAT * half else fifth


def _where_sure(answer: Answers) -> float:
    """Return the share that is contradicted where a good probe is sure, 0 if it may be chance."""
    if answer.accuracy < SURE:
        return 0.0
    for part, least, relation, count in LIMITS:
        share = _contradicted(answer, part)
        enough = share * part * len(answer.labels) >= count
        if enough and share >= max(least, relation * (1 - answer.accuracy)):
            return share
    return 0.0


def _contradicted(answer: Answers, part: float) -> float:
    """Return the share of the surest answers that contradict the label."""
    sure = answer.margins >= answer.margins.quantile(1 - part)
    return float((answer.classes != answer.labels)[sure].float().mean())
