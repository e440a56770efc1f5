"""The ledger: all claims, of the paper or of others, each with the study that tests it and the rule that decides it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from muonlab.lab import paper
from muonlab.lab.studies import find
from muonlab.lab.study import ProfileName
from muonlab.report.claims import rules, theory_rules
from muonlab.report.claims.rules import NS, SGD_M, SVD, Rule

Q_23 = NS[1:]
DEGREES = tuple(f"Muon (κ={kappa})" for kappa in paper.DEGREES)
LOWER = "mean training and test loss: lower at the last epoch, and at no epoch more than 5 % higher"
CLOSE = "mean training and test loss within 5 % at every epoch"
ORDER = (
    "every two rows that the paper puts over 5 % apart in a column are in the same order here, in every column; "
    "columns are the same fractions of the slowest run but that with the SVD; those before a first evaluation are left "
    "out, and half of them must remain"
)
AHEAD = (
    "mean training loss at the table's moments: lower at the last one, at none more than 5 % higher; those before a "
    "first evaluation are left out, and half of them must remain"
)
ENDS = "mean training loss of each at the last epoch is lower"
IN_TURN = "losses at the last epoch: the last is lower than the first, and none is over 5 % above the one before"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        name: letters, digits and hyphens.
        study: the study that tests it.
        sentence: index of the study's claim that it belongs to.
        source: where the paper makes it.
        rule: the rule as text, with its tolerance.
        decide: the rule as code.
        paper: the paper's result as text; empty if it prints none.
        statement: replaces the study's sentence if it is more specific.
        at_least: the smallest profile that tests it.
        timed: whether it compares times. :func:`muonlab.lab.runner.timing.timing_of` chooses clock and hardware.
        exact: whether exact arithmetic decides it, without a run.
    """

    name: str
    study: str
    sentence: int
    source: str
    rule: str
    decide: Rule
    paper: str = ""
    statement: str = ""
    at_least: ProfileName = "small"
    timed: bool = False
    exact: bool = False

    @property
    def text(self) -> str:
        """The claim as a sentence."""
        return self.statement or find(self.study).claims[self.sentence]


def _of_table(table: paper.TimedLosses) -> Iterable[Claim]:
    """Return the claim about the order of the optimizers in a table of losses over time."""
    doubtful = (SVD,) if table.item == "Table 7" else ()  # an exact arithmetic progression: see paper.DOUBTS
    last = {label: row[-1] for label, row in table.losses.items()}
    yield Claim(
        f"{table.item.lower().replace(' ', '-')}-order",
        table.study,
        0,
        table.item,
        ORDER + (f"; without {SVD}, whose row is interpolated" if doubtful else ""),
        rules.order_of(table, without=doubtful),
        paper=", ".join(f"{label} {value:g}" for label, value in last.items()) + f" at {table.seconds[-1]:,} s",
        statement=f"The order of the optimizers in {table.item} ({table.model} on {table.dataset}), moment by moment.",
        timed=True,
    )


def _of_tabled_study(table: paper.TimedLosses, figure: str) -> Iterable[Claim]:
    """Return the two claims that the studies of other datasets test."""
    name = table.study.partition("-")[0]
    ends = {label: table.losses[label][-1] for label in (*NS, SGD_M, SVD)}
    printed = ", ".join(f"{label} {value:g}" for label, value in ends.items() if label != SVD)
    yield Claim(
        f"{name}-steps-below-sgdm", table.study, 0, f"{figure}, {table.item}", ENDS,
        rules.ends_below(NS, SGD_M), printed,
        statement=f"{table.model} on {table.dataset}: Muon with Newton-Schulz steps ends below SGD-M in training loss.",
    )  # fmt: skip
    yield Claim(
        f"{name}-steps-ahead-of-svd", table.study, 1, f"{figure}, {table.item}", AHEAD,
        rules.ahead_at_every_moment(NS, SVD, table), f"{printed}, {SVD} {ends[SVD]:g} at {table.seconds[-1]:,} s",
        timed=True,
    )  # fmt: skip


def _claims() -> Iterable[Claim]:
    mlp, _, resnet, wrn, nano, large = paper.TABLES
    figure_1 = "Section 5, Figure 1"
    yield Claim("one-step-beats-sgdm", "q-ablation", 0, figure_1, LOWER, rules.below_at_every_epoch(NS[0], SGD_M))
    yield Claim("steps-match-svd", "q-ablation", 1, figure_1, CLOSE, rules.close_at_every_epoch(Q_23, SVD))
    yield Claim(
        "steps-sooner-than-svd", "q-ablation", 2, figure_1,
        "mean seconds to the lowest test loss that every run of the three reaches: at least 5 % fewer than the SVD's",
        rules.sooner(Q_23, SVD), timed=True,
    )  # fmt: skip
    yield Claim(
        "more-steps-improve", "q-ablation", 1, figure_1, IN_TURN, rules.falls_along(NS),
        statement="As q increases, the learning dynamics per epoch steadily improve.",
    )  # fmt: skip
    for table in paper.TABLES:
        yield from _of_table(table)
    yield from _of_tabled_study(mlp, "Figure 2")
    for table, figure in ((resnet, "Figure 4"), (wrn, "Figure 5")):
        yield from _of_tabled_study(table, figure)
        yield Claim(
            f"{table.study.partition('-')[0]}-more-steps-lower", table.study, 0, f"{figure}, {table.item}", IN_TURN,
            rules.falls_along(NS, ("train_loss",)),
            statement="The training loss at the last epoch is lower with more Newton-Schulz steps.",
        )  # fmt: skip
    for table, figure in ((nano, "Figure 6"), (large, "Figure 7")):
        size = table.study.split("-")[1]
        yield Claim(
            f"gpt-{size}-steps-ahead-of-sgdm".replace(".", "-"), table.study, 0, f"{figure}, {table.item}", AHEAD,
            rules.ahead_at_every_moment(NS, SGD_M, table),
            f"at the last moment {', '.join(f'{label} {table.losses[label][-1]:g}' for label in (*NS, SGD_M))}",
            timed=True,
        )  # fmt: skip
    yield Claim(
        "gpt-124m-steps-ahead-of-svd", nano.study, 1, "Figure 6, Table 6", AHEAD,
        rules.ahead_at_every_moment(NS, SVD, nano), f"{SVD} {nano.losses[SVD][-1]:g} at {nano.seconds[-1]} s",
        timed=True,
    )  # fmt: skip
    yield Claim(
        "gpt-1-3b-far-below-sgdm", large.study, 1, "Figure 7, Table 7",
        "mean training loss of each at the end is at least 5 % lower",
        rules.ends_below(NS, SGD_M, by=rules.TOLERANCE),
        ", ".join(f"{label} {large.losses[label][-1]:g}" for label in (*NS, SGD_M)),
    )  # fmt: skip
    yield Claim("degree-lowers-loss", "degree", 0, "Figure 8", IN_TURN, rules.falls_along(DEGREES))
    yield Claim(
        "degree-lengthens-steps", "degree", 1, "Figure 8",
        "seconds per update: κ = 5 over 5 % more than κ = 1, and none over 5 % less than the one before",
        rules.steps_lengthen(DEGREES), timed=True,
    )  # fmt: skip
    yield from _of_rank()
    time_to = "mean seconds to the lowest test loss that every run reaches"
    yield Claim(
        "large-batch-first", "batch-size", 0, "Figure 10", f"{time_to}: fewest with B = 1024",
        rules.first_of("B=1024"), "B = 1024 first", timed=True,
    )  # fmt: skip
    yield Claim(
        "small-batch-later", "batch-size", 1, "Figure 10",
        f"{time_to}: with B = 1024 at least 5 % fewer than with B = 64",
        rules.sooner(["B=1024"], "B=64"), timed=True,
    )  # fmt: skip
    yield Claim(
        "adhoc-not-monotone", "adhoc", 0, "last appendix, Figure 11",
        "τ' < 0 somewhere on [0, 1], in exact arithmetic; no run is needed",
        theory_rules.adhoc_is_not_monotone, "τ'(1) = −0.5087, a misprint", exact=True,
    )  # fmt: skip
    yield from _of_costs()
    yield from _of_proofs()
    yield from _of_digits()
    yield from _of_precision()


NEAR_AN_END = "not decided if an end of the interval is closer to a slope than one standard error of its fit over runs"


def _of_rank() -> Iterable[Claim]:
    printed = {slopes.optimizer: slopes for slopes in paper.SLOPES}
    both = (SVD, "Muon (q=3)")
    raw = ", ".join(f"{label} {slopes.raw}" for label, slopes in printed.items())
    yield Claim(
        "rank-sgdm-grows", "rank", 0, "Section 5, Figure 9, Table 8",
        f"log-log slope between 0.25 and 0.35: 0.3 to the digit printed; {NEAR_AN_END}",
        rules.slope_between([SGD_M], 0.25, 0.35), f"{printed[SGD_M].raw}",
    )  # fmt: skip
    yield Claim(
        "rank-muon-flat", "rank", 1, "Section 5, Figure 9, Table 8",
        f"log-log slopes between −0.15 and 0.15: the paper calls 0.102 and −0.106 nearly flat; {NEAR_AN_END}",
        rules.slope_between(both, -0.15, 0.15), raw,
    )  # fmt: skip
    yield Claim(
        "rank-normalised", "rank", 2, "Figure 9, Table 8",
        "log-log slopes of ‖∇f‖_*/√r between −0.65 and −0.35: the paper calls −0.398 and −0.606 about −1/2; they are "
        f"the raw ones less one half, so this is the same fact as rank-muon-flat; {NEAR_AN_END}",
        rules.slope_between(both, -0.65, -0.35, normalised=True),
        ", ".join(f"{label} {printed[label].normalised}" for label in both),
    )  # fmt: skip
    yield Claim(
        "rank-muon-flatter", "rank", 1, "Figure 9, Table 8",
        "log-log slope of each Muon below that of SGD-M; not decided if two slopes differ by less than the root of the "
        "sum of their squared standard errors",
        rules.flatter(both, SGD_M), raw,
        statement="The gradient's nuclear norm grows more slowly with the rank under Muon than under SGD-M.",
    )  # fmt: skip


def _of_costs() -> Iterable[Claim]:
    yield Claim(
        "lemma-11-predicts", "wall-clock", 0, "Lemma 11",
        "measured over predicted ratio within 5 % of 1 at every shape; both throughputs are measured on other shapes",
        theory_rules.lemma_predicts, timed=True,
    )  # fmt: skip
    yield Claim(
        "products-faster-than-svds", "wall-clock", 1, "Lemma 11, discussion",
        "the measured throughput of products is higher than that of SVDs; on a GPU the median ratio is 4 to 10",
        theory_rules.products_are_faster, "often 4 to 10 times, on GPUs", timed=True,
    )  # fmt: skip
    yield Claim(
        "steps-cheaper-than-svd", "wall-clock", 2, "Lemma 11, discussion",
        "three steps take less time than an SVD at every shape, in the paper's form and in ours",
        theory_rules.steps_beat_svd, timed=True,
    )  # fmt: skip


def _of_proofs() -> Iterable[Claim]:
    holds = "each inequality holds on every problem and run, to a relative 1e-9 for rounding"
    check = theory_rules.inequalities_hold
    muon = ("paper", "paper_after", "sharp", "sharp_after", "corrected", "floor", "floor_corrected")
    sgdm = ("sgdm_paper", "sgdm_sharp", "sgdm_L_F")
    for number, names, covers, method in (
        (1, muon, lambda name: name.startswith("muon_q"), "Muon with q Newton-Schulz steps"),
        (3, sgdm, lambda name: name.startswith("sgdm"), "SGD-M"),
        (4, muon, lambda name: name == "muon_svd", "Muon with the exact polar factor"),
    ):
        yield Claim(
            f"theorem-{number}", "theory-at-work", 0, f"Theorem {number}", holds, check(names, covers, kind="expected"),
            statement=f"The mean of ‖∇f‖_* of {method} stays below the bounds of Theorem {number} and sharper ones.",
        )  # fmt: skip
    yield Claim(
        "proofs-step-by-step", "theory-at-work", 1, "Lemmas 6 to 8, alignment theorem", holds,
        check((), lambda _: True, kind="certain"),
    )  # fmt: skip
    yield Claim(
        "theorems-a-b-c", "theory-at-work", 2, "beyond the paper: Theorems A, B and C", holds,
        check(("trajectory", "trajectory_gap"), lambda _: True, kind="expected"),
    )  # fmt: skip
    yield Claim(
        "root-of-rank", "theory-at-work", 3, "Table 1",
        "exponent of r in the mean of ‖∇f‖_* on canyon: larger for SGD-M tuned to L_F than for Muon with the exact "
        "polar factor, by at least 1/4, half of what the bounds differ by",
        theory_rules.sgdm_pays_root_of_rank, "√(rLD/T) for SGD-M, √(LD/T) for Muon",
    )  # fmt: skip


def _of_digits() -> Iterable[Claim]:
    digits = "as Section 5, on digits"
    yield Claim("digits-one-step", "quickstart", 0, digits, LOWER, rules.below_at_every_epoch(NS[0], SGD_M))
    yield Claim("digits-match-svd", "quickstart", 1, digits, CLOSE, rules.close_at_every_epoch(Q_23, SVD))
    recorded = "in every recorded step and matrix of Muon with Taylor steps"
    rounded = "to a relative 1e-6, as float32 momenta have it"
    yield Claim(
        "residual-bound", "quickstart", 1, "Lemma 3, Theorem 2",
        f"1 − δ_q at least 1 − δ_0^((κ+1)^q) {recorded}, {rounded}",
        theory_rules.residual_stays_below, at_least="smoke",
        statement="The residual decays as δ_q ≤ δ_0^((κ+1)^q) on the momenta of a training run.",
    )  # fmt: skip
    yield Claim(
        "factor-bound", "quickstart", 1, "Theorem 2", f"χ_q ≤ (1 − δ_0^((κ+1)^q))^(−1/2) {recorded}, {rounded}",
        theory_rules.factor_stays_below, at_least="smoke",
        statement="The factor χ_q stays below the bound of Theorem 2 on the momenta of a training run.",
    )  # fmt: skip
    yield Claim(
        "alignment-floor", "quickstart", 1, "beyond the paper: alignment floor",
        f"alignment at least the floor that the rank guarantees, {recorded}, {rounded}",
        theory_rules.alignment_stays_above_floor, at_least="smoke",
        statement="The alignment of every update is at least the floor that its rank guarantees.",
    )  # fmt: skip


def _of_precision() -> Iterable[Claim]:
    source = "beyond the paper: Shulgin et al. 2025, abstract"
    rule = (
        "on both networks the {} with the least final training loss (by the parabola through the best point of the "
        "grid and its neighbours, for each seed) is {} with q = 1 than with the SVD, by more than one standard error "
        "of the difference over seeds; not decided if the best is at an end of the grid"
    )
    pair = {"of": NS[0], "to": SVD}
    yield Claim(
        "precision-lr", "lr-by-steps", 0, source, rule.format("learning rate", "smaller"),
        rules.optimum_shifts("log_lr", **pair, sign=-1),
        statement="Muon with one step has a smaller best learning rate than Muon (SVD).",
    )  # fmt: skip
    yield Claim(
        "precision-step", "lr-by-steps", 0, source,
        rule.format("learning rate times ρ", "smaller") + "; ρ = ⟨M, O⟩/‖M‖_* is that of the best point of the grid",
        rules.optimum_shifts("log_descent", **pair, sign=-1),
        statement="Muon with one step has a smaller best step, learning rate times ρ, than Muon (SVD).",
    )  # fmt: skip
    yield Claim(
        "precision-momentum", "lr-by-steps", 1, source, rule.format("1/(1 − momentum)", "larger"),
        rules.optimum_shifts("log_memory", **pair, sign=1),
        statement="Muon with one step has a larger best momentum than Muon (SVD).",
    )  # fmt: skip


@cache
def all_claims() -> Mapping[str, Claim]:
    """Return every claim by name, in the order of the paper.

    Example:
        >>> all_claims()["steps-match-svd"].rule
        'mean training and test loss within 5 % at every epoch'
    """
    return MappingProxyType({claim.name: claim for claim in _claims()})


def digest(study: str | None = None) -> str:
    """Return the SHA-256 of the text of a study's claims and rules; of all claims if no study is given.

    A run records it, so that its page can tell whether rules have changed since the run began.
    """
    names = ("name", "study", "sentence", "source", "text", "rule", "paper", "at_least", "timed", "exact")
    claims = [claim for claim in all_claims().values() if study in (None, claim.study)]
    texts = [[getattr(claim, name) for name in names] for claim in claims]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
