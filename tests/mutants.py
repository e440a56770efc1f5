"""Mutation check: every small fault of the table below must make a test fail.

Run ``python tests/mutants.py`` (``make soak`` does, through tests/test_mutants.py). The program copies ``src`` to a
temporary folder, applies one mutation at a time and runs pytest on the copy, in a forked process; the faulty tree
never touches the working tree. It exits with 1 if a mutant survives or if the text of a mutation does not occur exactly
once. Run it after ``make test`` has passed: a test that fails without a mutation counts as one that kills a mutant.

To add a row: ``Mutant(room, file, old, new, select)``. ``file`` is relative to ``src/muonlab``; ``old`` must occur in
it exactly once; ``select`` holds pytest arguments (test files, ``-k`` expressions) that run in seconds and must fail.
Tests marked slow or gpu are not run. Choose a fault that is easy to make: a sign, a constant, a comparison, an
off-by-one, a dropped line, swapped arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 90
"""Time limit of one run of pytest. A mutant that makes its tests hang counts as killed."""


@dataclass(frozen=True)
class Mutant:
    """A fault, and the tests that must notice it."""

    room: str
    file: str
    old: str
    new: str
    select: tuple[str, ...]

    @property
    def name(self) -> str:
        """Identify the row: the file and the text that replaces the original."""
        return f"{self.file}: {' '.join(self.new.split())[:60] or 'dropped: ' + ' '.join(self.old.split())[:50]}"


@dataclass(frozen=True)
class Outcome:
    """What happened to a mutant: the first test that failed ("" if none did) and how long that took."""

    room: str
    mutant: str
    killed_by: str
    seconds: float


TAYLOR = ("tests/polynomials/test_taylor.py",)
BASE = ("tests/polynomials/test_base.py", "-k", "reading_order")  # hypothesis would shrink failures for minutes
RANGES = ("tests/polynomials/test_ranges.py", "-k", "tight or irrational or outward or tiny")
EXPRESS = ("tests/polynomials/test_minimax.py",)
PROPERTIES = ("tests/polynomials/test_properties.py",)
PRESETS = ("tests/polynomials/test_presets.py",)
RESIDUAL = ("tests/theory/test_residual.py",)
RATES = ("tests/theory/test_rates.py",)
ALIGNMENT = ("tests/theory/test_alignment.py",)
TRAJECTORY = ("tests/theory/test_trajectory.py", "tests/paper/test_theorem_b.py", "tests/paper/test_theorem_c.py")
ITERATIONS = ("tests/theory/test_iterations.py",)
COST = ("tests/theory/test_cost.py", "tests/paper/test_lemma_11.py")
FLOOR = ("tests/paper/test_alignment_floor.py",)
STEPS = (
    "tests/orthogonalize/test_newton_schulz.py",
    "-k",
    "fifty_digit or plain_loop or stacked or batch or cost_model",
)
PRODUCTS = ("tests/orthogonalize/test_products.py",)
POLAR = ("tests/orthogonalize/test_polar.py",)
HALF_PRECISION = ("tests/orthogonalize/test_half_precision.py",)
OWN = "tests/lab/own/test_own_study.py"
SOURCE = ("tests/lab/own/test_source.py",)
OPTIMA = ("tests/lab/test_grid_optima.py",)
MATRIX = ("tests/diagnostics/certificates/test_matrix_certification.py", "-k", "floor")
NETWORK = ("tests/diagnostics/certificates/test_network_certificate.py",)
GUARANTEE = ("tests/diagnostics/planning/test_autosteps.py", "-k", "guarantee")
PRESCALES = ("tests/paper/test_definition_4.py", "tests/paper/test_remark_1.py")
CROSSOVER = ("tests/orthogonalize/test_crossover.py", "-k", "large or always or environment or prescale")

MUTANTS = (
    # ---------------------------------------------------------------------------------------------------- polynomials
    Mutant("polynomials", "polynomials/taylor_polynomial.py", "4**s)", "4 ** s + (s > 6))", TAYLOR),
    Mutant(
        "polynomials",
        "polynomials/taylor_polynomial.py",
        "lead = (2 * kappa + 1)",
        "lead = 2 * (2 * kappa + 1)",
        TAYLOR,
    ),
    Mutant(
        "polynomials",
        "polynomials/base.py",
        "return (1 - tau[0], *(-c for c in tau[1:]))",
        "return (tau[0], *tau[1:])",
        PROPERTIES,
    ),
    Mutant("polynomials", "polynomials/base.py", "factor ** (2 * k + 1)", "factor ** (2 * k)", PRESETS),
    Mutant(
        "polynomials",
        "polynomials/base.py",
        "self.polynomials + other.polynomials",
        "other.polynomials + self.polynomials",
        BASE,
    ),
    Mutant("polynomials", "polynomials/ranges.py", "math.ceil(scaled) if up", "math.floor(scaled) if up", RANGES),
    Mutant("polynomials", "polynomials/minimax.py", "high = 2 - low", "high = 1.0", EXPRESS),
    Mutant(
        "polynomials",
        "polynomials/properties.py",
        "constant == 1 and range_on(rest",
        "constant >= 1 and range_on(rest",
        PROPERTIES,
    ),
    Mutant("polynomials", "polynomials/presets.py", "self.table[-1:] * (count", "self.table[:1] * (count", PRESETS),
    # --------------------------------------------------------------------------------------------------------- theory
    Mutant(
        "theory",
        "theory/residual.py",
        "float((kappa + 1) ** q) * log_delta",
        "float((kappa + 1) * q) * log_delta",
        RESIDUAL,
    ),
    Mutant("theory", "theory/residual.py", "if delta < 0.5:", "if delta < 2.0:", RESIDUAL),
    Mutant(
        "theory",
        "theory/rates.py",
        '"curvature": chi * L * eta * gain**2 / 2,',
        '"curvature": chi * L * eta * gain / 2,',
        RATES,
    ),
    Mutant("theory", "theory/rates.py", '"start": 2 * beta**2 * L * D', '"start": 2 * beta * L * D', RATES),
    Mutant(
        "theory",
        "theory/alignment.py",
        "(rho + s) * L * eta * s * factors.drift",
        "(rho - s) * L * eta * s * factors.drift",
        ALIGNMENT,
    ),
    Mutant("theory", "theory/alignment.py", "before = np.exp((t - 1) *", "before = np.exp(t *", ALIGNMENT),
    Mutant("theory", "theory/trajectory.py", "pull = decay * radii", "pull = 0 * radii", TRAJECTORY),
    Mutant("theory", "theory/trajectory.py", "float(problem.noise * 2 **", "float(problem.noise * 1 **", TRAJECTORY),
    Mutant(
        "theory",
        "theory/trajectory.py",
        "load = rates * (np.abs(rhos) + gains)",
        "load = rates * np.abs(rhos)",
        TRAJECTORY,
    ),
    *(  # constants that are wrong by 5 %
        Mutant("theory", f"theory/{file}", old, old.replace(part, f"0.95 * {part}", 1), TRAJECTORY)
        for file, old, part in (
            ("trajectory.py", "L / 2 * float(np.sum((rates * (gains + pull)) ** 2))", "L"),
            ("trajectory.py", "L * float(np.sum(rates * (rhos + gains) * trace.drift))", "gains"),
            ("trajectory.py", "rhos * trace.past_noise + gains * trace.noise", "trace.past_noise"),
            ("trajectory.py", "L * float(np.sum(load * trace.drift))", "L"),
            ("trajectory.py", "unit * size * (float(np.sum", "size"),
            ("trajectory.py", "FrankWolfeGap(_over(sums, rates), bool(np.all(pulls", "_over"),
            ("trajectory.py", "radius = (1 - eta * decay) * radius + eta * gain", "eta * gain"),
            ("lr_schedules.py", "WARMUP, DECAY = 0.05, 0.15", "0.15"),
            ("lr_schedules.py", "(rho * ahead * beta + s * current) * kept", "s * current"),
            ("lr_schedules.py", "(rho + s) * math.sqrt(2 * L * D)", "(rho + s)"),
            ("momentum.py", "gamma**tail * kept + (1 - gamma) ** tail", "gamma**tail"),
        )
    ),
    Mutant("theory", "theory/trajectory.py", "if right < 0 and (", "if right < -1e9 and (", TRAJECTORY),
    Mutant(
        "theory",
        "theory/iterations.py",
        "nesterov=nesterov, beta=beta",
        "nesterov=False, beta=beta",
        ("tests/theory/test_iterations.py", "-k", "schedule"),
    ),
    Mutant("theory", "theory/trajectory.py", "if weight_norm is None:", "if weight_norm == -1:", TRAJECTORY),
    Mutant(
        "theory",
        "theory/lr_schedules.py",
        "* lag / sums.total",
        "* lag * ahead / sums.total",
        (*TRAJECTORY, "-k", "start"),
    ),
    Mutant("theory", "theory/floor.py", "return 2 / (1 + math.sqrt(", "return 2 / (0 + math.sqrt(", MATRIX),
    Mutant("theory", "theory/iterations.py", "if tried.total <= target:", "if tried.total >= target:", ITERATIONS),
    Mutant("theory", "theory/cost.py", "2 * q * (kappa + 1) * m * m * n", "2 * q * kappa * m * m * n", COST),
    Mutant(
        "theory",
        "theory/floor.py",
        "return F + mu * (1 / (r * s) - s ** (power - 1))",
        "return F + mu * (1 / (r * s))",
        FLOOR,
    ),
    # -------------------------------------------------------------------------------------------------- orthogonalize
    Mutant("orthogonalize", "orthogonalize/iteration.py", "R.mul_(d**2)", "R.mul_(d)", STEPS),
    Mutant("orthogonalize", "orthogonalize/crossover.py", "m >= rows and", "m > rows and", CROSSOVER),
    Mutant("orthogonalize", "orthogonalize/crossover.py", "(1024, 4)", "(1024, 3)", CROSSOVER),
    Mutant("orthogonalize", "orthogonalize/crossover.py", "*A.stride(), A.storage_offset()", "*A.stride()", CROSSOVER),
    Mutant(
        "orthogonalize",
        "orthogonalize/crossover.py",
        '"MUONLAB_KERNELS", "auto"',
        '"MUONLAB_KERNELS", "never"',
        CROSSOVER,
    ),
    Mutant(
        "orthogonalize",
        "orthogonalize/iteration.py",
        "            square, c = None, 1.0\n",
        "            square = None\n",
        STEPS,
    ),
    Mutant(
        "orthogonalize", "orthogonalize/products.py", "out[..., second, first].mT", "out[..., second, first]", PRODUCTS
    ),
    Mutant(
        "orthogonalize",
        "orthogonalize/products.py",
        "add_identity(Z, c[first + s])",
        "add_identity(Z, c[first])",
        PRODUCTS,
    ),
    Mutant("orthogonalize", "orthogonalize/polar_factor.py", "(sigma > threshold)", "(sigma >= 0 * threshold)", POLAR),
    Mutant(
        "orthogonalize",
        "orthogonalize/prescale.py",
        "max(1.0, norm) if prescale",
        "min(1.0, norm) if prescale",
        PRESCALES,
    ),
    Mutant(
        "orthogonalize",
        "orthogonalize/workspace.py",
        "_kept.by_dtype.pop(dtype, None)",
        "_kept.by_dtype.get(dtype, None)",
        PRODUCTS,
    ),
    Mutant(
        "orthogonalize",
        "orthogonalize/segments.py",
        "lam = F * F",
        "lam = F",
        ("tests/orthogonalize/test_segments.py",),
    ),
    *(
        Mutant("orthogonalize", f"orthogonalize/{file}", old, new, (*HALF_PRECISION, "-k", tests))
        for file, old, new, tests in (
            ("arithmetic.py", "TF32_ROUNDOFF = 2.0**-11", "TF32_ROUNDOFF = 2.0**-24", "noticed"),
            (
                "arithmetic.py",
                "get_device_capability(device)[0] >= 8",
                "get_device_capability(device)[0] >= 7",
                "noticed",
            ),
            ("products.py", "else torch.float32  # half", "else out.dtype  # half", "long_rows"),
            ("segments.py", "commuting * pairs", "symmetric * pairs", "cost_of_symmetric"),
            ("rounding.py", "return float(rows.max() + columns.max())", "return float(rows.max())", "concentration"),
            ("rounding.py", "parts * 2 * u", "parts * 2 / 3 * u", "third"),
        )
    ),
    Mutant(
        "orthogonalize", "orthogonalize/hardware.py", "else 7\n", "else 5\n", ("tests/orthogonalize/test_hardware.py",)
    ),
    Mutant(
        "optim",
        "optim/step.py",
        "lr = lr if lr.device == weights[0].device else lr.to(weights[0].device)",
        "lr = lr.reshape(())",
        ("tests/optim/test_muon.py", "-k", "another_device"),
    ),
    # ------------------------------------------------------------------------- optim, diagnostics, lab, report, cli
    Mutant(
        "diagnostics",
        "diagnostics/matrix_spectra.py",
        "self.values[self.values > self.tolerance]",
        "self.values[self.values >= 0]",
        ("tests/diagnostics/test_matrix_spectra.py", "-k", "values_norms or residuals_and"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/matrix_spectra.py",
        "** (1 / p) if top else 0.0",
        "** (1 / 2) if top else 0.0",
        ("tests/diagnostics/test_matrix_spectra.py", "-k", "scale_is_that"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/matrix_spectra.py",
        "-np.sum(share * np.log(share))",
        "np.sum(share * np.log(share))",
        ("tests/diagnostics/test_matrix_spectra.py", "-k", "values_norms"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/certificates/verdicts.py",
        "if c.alignment <= 0:",
        "if c.alignment <= -2:",
        ("tests/diagnostics/certificates/test_matrix_certification.py", "-k", "garbage or opposite or not_what_exact"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/certificates/verdicts.py",
        "held = c.alignment >= c.alignment_floor - slack",
        "held = c.alignment <= c.alignment_floor + 1",
        ("tests/diagnostics/certificates/test_matrix_certification.py", "-k", "below_the_floor"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/certificates/verdicts.py",
        "held = c.delta <= c.delta_bound + 2 * allowance and",
        "held = c.delta <= c.delta_bound + 2 or",
        (
            "tests/diagnostics/certificates/test_matrix_certification.py",
            "-k",
            "caught_by or too_few or opposite or garbage",
        ),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/planning/autosteps.py",
        "enough[0] if enough",
        "enough[-1] if enough",
        ("tests/diagnostics/planning/test_autosteps.py",),
    ),
    Mutant("diagnostics", "diagnostics/planning/autosteps.py", "        self._note_used()\n", "", GUARANTEE),
    Mutant(
        "diagnostics", "diagnostics/planning/autosteps.py", "return descent - rounding,", "return descent,", GUARANTEE
    ),
    Mutant("diagnostics", "diagnostics/certificates/coverage.py", "bits < 32", "bits < 16", NETWORK),
    Mutant(
        "diagnostics",
        "diagnostics/certificates/network_certificate.py",
        'return "holds" if self.reduced_descent > 0',
        'return "holds" if self.alignment > 0',
        NETWORK,
    ),
    Mutant("diagnostics", "diagnostics/weight_decay.py", "(descent * norm + inward)", "(norm + inward)", NETWORK),
    Mutant(
        "diagnostics",
        "diagnostics/recording/covered_run.py",
        "rel_tol=_SAME_WEIGHTS",
        "rel_tol=1e-3",
        ("tests/diagnostics/recording/test_recorder.py", "-k", "from_the_start"),
    ),
    Mutant("lab", "lab/runner/timing.py", "> QUIET:", ">= 2 * QUIET:", ("tests/lab/runner/test_timing.py",)),
    Mutant("lab", "_files.py", "if size > at_most", "if size > 2**50", ("tests/test_files.py",)),
    Mutant("lab", "_files.py", "range(DEEPEST_JSON + 1)", "range(DEEPEST_JSON + 500)", ("tests/test_files.py",)),
    Mutant(
        "lab", "lab/files/forms.py", "return names or _first(", "return _first(", ("tests/lab/files/test_forms.py",)
    ),
    Mutant(
        "lab", "lab/own/source.py", "for used in sorted(", "for used in sorted([]) and (", (OWN, "-k", "edited_code")
    ),
    Mutant("lab", "lab/own/source.py", "_follow_all(file, file.code.tree, found)", "pass", SOURCE),
    Mutant("lab", "lab/own/source.py", "names.add(_root(statement.value.func)", 'names.add(""', SOURCE),
    Mutant("lab", "lab/own/models.py", '"weights": digest.hexdigest()', '"weights": ""', (OWN, "-k", "initialisation")),
    Mutant("lab", "lab/own/datasets.py", "digest.update(values.data)", "pass", (OWN, "-k", "own_tensors")),
    Mutant(
        "lab", "lab/runner/planning.py", 'code = {"work": own.identity}', "pass", (OWN, "-k", "function_of_the_user")
    ),
    Mutant("lab", "lab/selection.py", 'cell.status == "done" and math', "math", ("tests/lab/test_selection.py",)),
    Mutant("lab", "lab/data/batches.py", "chosen[count:].sort()", "chosen.sort()", ("tests/lab/test_selection.py",)),
    Mutant("lab", "lab/grid_optima.py", "fall * right - rise * left", "fall * left - rise * right", OPTIMA),
    Mutant("lab", "lab/grid_optima.py", "-math.log2(1.0 - m)", "math.log2(m)", OPTIMA),
    Mutant(
        "lab",
        "lab/runner/planning.py",
        "            check_device(spec.device)",
        "            continue",
        ("tests/lab/test_costs.py", "-k", "not_there"),
    ),
    Mutant(
        "lab",
        "lab/training/evaluation.py",
        "* len(y), len(y)]",
        "* len(y), 1]",
        ("tests/lab/own/test_own_study.py", "-k", "pairs_of_any_shape"),
    ),
    Mutant("lab", "lab/lr_sweep.py", 'and row["step"] > 1', "", ("tests/lab/test_lr_sweep.py", "-k", "alone")),
    Mutant(
        "report",
        "report/claims/rules.py",
        "clear.append(sign * value > 0)",
        "clear.append(value > 0)",
        ("tests/report/claims/test_rules.py", "-k", "optimum"),
    ),
    Mutant(
        "lab",
        "lab/runner/timing.py",
        "if any(cell.jobs > 1 for cell in cells):",
        "if any(cell.jobs > 2 for cell in cells):",
        ("tests/lab/runner/test_timing.py",),
    ),
    Mutant(
        "lab",
        "lab/runner/planning.py",
        "return request.retry or (",
        "return True or (",
        ("tests/lab/runner/test_run_study.py", "-k", "a_failure_is_recorded"),
    ),
    Mutant(
        "lab",
        "lab/runner/store.py",
        '"numerics": NUMERICS, "data": data, **',
        '"numerics": NUMERICS, "data": None, **',
        ("tests/lab/runner/test_run_study.py", "tests/lab/studies/test_studies.py", "-k", "data or key"),
    ),
    Mutant(
        "lab",
        "lab/files/hashed_json.py",
        "return value if hashed_bytes(value) == content else None",
        "return value",
        ("tests/lab/files/test_hashed_json.py",),
    ),
    Mutant(
        "lab",
        "lab/files/row_files.py",
        'lines[: saved["lines"]]',
        'lines[: saved["lines"] + 1]',
        ("tests/lab/runner/test_damaged_files.py", "tests/lab/runner/test_run_study.py"),
    ),
    Mutant(
        "lab",
        "lab/training/recipe.py",
        "return (update + 1) / rise",
        "return update / rise",
        ("tests/lab/training/test_loop.py", "-k", "learning_rate_rises"),
    ),
    Mutant(
        "lab",
        "lab/training/recipe.py",
        "if spec.aux_lr is None else spec.aux_lr",
        "if spec.aux_lr is None else spec.lr",
        ("tests/lab/training/test_loop.py", "-k", "main_optimizer"),
    ),
    Mutant(
        "report",
        "report/curves.py",
        "np.std(values, ddof=1)",
        "np.std(values)",
        ("tests/report/test_curves.py", "-k", "statistics_module"),
    ),
    Mutant(
        "report",
        "report/curves.py",
        "min(x[-1] for x, _ in traces)",
        "max(x[-1] for x, _ in traces)",
        ("tests/report/test_curves.py", "-k", "over_time"),
    ),
    Mutant(
        "report",
        "report/curves.py",
        "np.maximum(ends - width, 0)",
        "np.maximum(ends - width - 1, 0)",
        ("tests/report/test_curves.py", "-k", "smoothing_is"),
    ),
    Mutant(
        "report",
        "report/claims/rules.py",
        "max(ends) < 1 and max(worst) <= 1 + TOLERANCE",
        "max(worst) <= 1 + TOLERANCE",
        ("tests/report/claims/test_rules.py", "-k", "lower_means"),
    ),
    Mutant(
        "report",
        "report/claims/rules.py",
        "bool(abs(worst - 1) <= TOLERANCE)",
        "bool(worst - 1 <= TOLERANCE)",
        ("tests/report/claims/test_rules.py", "-k", "close_means"),
    ),
    Mutant("cli", "cli/app.py", 'return EXIT_CODES.get(report.get("status", ""), 0)', "return 0", ("tests/cli",)),
    Mutant(
        "cli",
        "cli/app.py",
        "        return 2\n\n\ndef _line_of_study",
        "        return 1\n\n\ndef _line_of_study",
        ("tests/cli/test_app.py", "-k", "bad_value"),
    ),
    Mutant(
        "optim",
        "optim/step.py",
        "torch._foreach_lerp_(momenta, grads, 1 - beta)",
        "torch._foreach_lerp_(momenta, grads, beta)",
        ("tests/optim/test_step.py::test_a_step_is_the_update_in_the_docstring_with_every_option_of_its_table",),
    ),
    Mutant(
        "optim",
        "optim/step.py",
        'torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])',
        'torch._foreach_mul_(weights, 1 - lr * scale * group["weight_decay"])',
        ("tests/optim/test_step.py::test_a_step_is_the_update_in_the_docstring_with_every_option_of_its_table",),
    ),
    Mutant(
        "optim",
        "optim/step.py",
        "in_range: Tensor = largest <= torch.finfo(piece.grad.dtype).max",
        "in_range: Tensor = largest < torch.inf",
        ("tests/optim/test_muon.py::test_skip_and_raise_notice_finite_gradients_that_would_overflow_the_momentum",),
    ),
    Mutant(
        "optim",
        "optim/step.py",
        "torch.where(cast(Tensor, finite), tensor, copy, out=tensor)",
        "torch.where(cast(Tensor, finite), tensor, copy * 0, out=tensor)",
        ("tests/optim/test_muon.py::test_skip_leaves_its_parameter_as_if_the_step_had_not_been",),
    ),
    Mutant(
        "optim",
        "optim/step.py",
        'key = (piece.group["orthogonalizer"], shape,',
        "key = (shape,",
        (
            "tests/optim/test_muon.py::test_equal_shapes_of_different_groups_share_a_batch_unless_orthogonalized_differently",
        ),
    ),
    Mutant(
        "optim",
        "optim/scaling.py",
        "math.sqrt(max(1.0, outputs / inputs))",
        "math.sqrt(max(1.0, inputs / outputs))",
        ("tests/optim/test_step.py::test_a_step_is_the_update_in_the_docstring_with_every_option_of_its_table",),
    ),
    Mutant(
        "optim",
        "optim/scaling.py",
        "math.sqrt(outputs) / norms, 1.0)",
        "math.sqrt(outputs) / (norms + 1e-7), 1.0)",
        ("tests/optim/test_step.py::test_a_step_is_the_update_in_the_docstring_with_every_option_of_its_table",),
    ),
    Mutant(
        "optim",
        "optim/views.py",
        "_overlaps(shard_sizes, first, first + size)",
        "_overlaps(shard_sizes, 0, size)",
        ("tests/optim/test_layout.py::test_blocks_that_straddle_shards_are_cut_where_the_shards_are",),
    ),
    Mutant(
        "optim",
        "optim/views.py",
        "return (n, m) if self.transposed else (m, n)",
        "return (m, n)",
        ("tests/optim/test_views.py::test_a_transposed_parameter_steps_as_its_transpose",),
    ),
    Mutant(
        "optim",
        "optim/views.py",
        "block.reshape(m, n)).contiguous()",
        "block.reshape(m, n))",
        ("tests/optim/test_views.py::test_every_kind_of_cut_steps_as_separate_parameters",),
    ),
    Mutant(
        "optim",
        "optim/views.py",
        "whole // self.unit * size",
        "whole // len(self.turn)",
        ("tests/optim/test_views.py::test_every_kind_of_cut_steps_as_separate_parameters",),
    ),
    Mutant(
        "optim",
        "optim/views.py",
        "numbers = numbers[:2]",
        "pass",
        ("tests/optim/test_views.py::test_equal_turns_have_one_form",),
    ),
    Mutant(
        "optim",
        "optim/continuation.py",
        "(1 - beta**steps)",
        "1",
        ("tests/optim/test_continuation.py::test_the_momentum_is_the_average_of_gradients_without_its_bias",),
    ),
    Mutant(
        "optim",
        "optim/continuation.py",
        'group["weight_decay"] / factor',
        'group["weight_decay"]',
        ("tests/optim/test_continuation.py::test_every_scale_rule_makes_the_updates_and_the_decay_of_match_rms_adamw",),
    ),
    Mutant(
        "optim",
        "optim/views.py",
        "each = -(-size // shards)",
        "each = max(1, size // shards)",
        ("tests/optim/test_layout.py::test_chunks_are_those_of_torch",),
    ),
    Mutant(
        "optim",
        "optim/split.py",
        "return module.groups",
        "return 1",
        ("tests/optim/test_groups.py::test_convolutions_are_flattened_and_groups_are_separate_matrices",),
    ),
    Mutant(
        "optim",
        "optim/split.py",
        "if not entry.parameter.requires_grad:",
        "if entry.parameter.requires_grad is None:",
        ("tests/optim/test_groups.py::test_frozen_parameters_go_nowhere",),
    ),
    Mutant(
        "optim",
        "optim/options.py",
        "high=1.0, high_open=True)",
        "high=1.0, high_open=False)",
        ("tests/contracts/test_optimizers.py::test_a_bad_option_is_refused_wherever_it_is_given",),
    ),
    Mutant(
        "optim",
        "optim/options.py",
        "cutoff=0.8",
        "cutoff=0.99",
        ("tests/contracts/test_optimizers.py::test_a_misspelt_option_is_refused_and_a_key_of_the_users_own_is_kept",),
    ),
    Mutant(
        "optim",
        "optim/base.py",
        "isinstance(key, Tensor) and id(key) not in present",
        "isinstance(key, Tensor) and id(key) not in {id(key)}",
        (
            "tests/optim/test_replaced_parameters.py::"
            "test_states_follow_the_parameters_in_the_groups_and_the_old_ones_are_freed",
        ),
    ),
    Mutant(
        "optim",
        "optim/foreign.py",
        '"spectral_unclamped": "spectral"',
        '"spectral_unclamped": "original"',
        ("tests/optim/test_foreign.py::test_the_unclamped_rule_of_newer_torch_is_the_spectral_rule",),
    ),
    Mutant(
        "optim",
        "optim/foreign.py",
        '"scale": scale_of(group["adjust_lr_fn"]),',
        '"scale": "original",',
        ("tests/optim/test_foreign.py::test_a_torch_muon_goes_on_under_ours",),
    ),
    Mutant(
        "optim",
        "optim/foreign.py",
        '"nesterov": True,',
        '"nesterov": False,',
        ("tests/optim/test_foreign.py::test_a_muon_with_aux_adam_goes_on_under_ours_whatever_the_order_of_its_groups",),
    ),
    Mutant(
        "optim",
        "optim/layout.py",
        'return CPU_CHUNK_BYTES if device.type == "cpu" else DEVICE_CHUNK_BYTES',
        "return CPU_CHUNK_BYTES",
        (
            "tests/optim/test_muon.py::test_on_a_device_the_matrices_of_a_shape_and_its_transpose_are_one_call_up_to_a_number_of_bytes",
        ),
    ),
    Mutant(
        "optim",
        "optim/stack.py",
        "first = used[is_tall]",
        "first = used[False]",
        (
            "tests/optim/test_muon.py::test_on_a_device_the_matrices_of_a_shape_and_its_transpose_are_one_call_up_to_a_number_of_bytes",
        ),
    ),
    Mutant(
        "optim",
        "optim/stack.py",
        "        self._workspace.give(*self._taken)\n",
        "",
        ("tests/optim/test_capture.py::test_a_capturable_step_reads_and_allocates_nothing_after_the_first",),
    ),
    Mutant(
        "optim",
        "optim/capture.py",
        "lr.device != p.device",
        "lr.device == p.device",
        ("tests/optim/test_capture.py::test_a_step_that_would_not_repeat_in_a_graph_is_refused_with_the_way_out",),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/benchmarking/timing.py",
        "statistics.median(a / b for a, b in zip(times",
        "statistics.median(b / a for a, b in zip(times",
        ("tests/diagnostics/benchmarking/test_bench.py::test_the_ratio_is_that_of_the_side_over_muonlab",),
    ),
    Mutant(
        "optim",
        "optim/hooks.py",
        "for hook in list(self.values()):",
        "for hook in self.values():",
        ("tests/optim/test_muon.py::test_hooks_are_called_in_order_and_may_remove_themselves_while_they_are_called",),
    ),
    Mutant(
        "optim",
        "optim/distributed/plan.py",
        "key=lambda i: (-costs[i], i)",
        "key=lambda i: (costs[i], i)",
        ("tests/optim/test_layout.py::test_owners_are_within_a_third_of_the_best_and_equal_costs_go_round",),
    ),
    Mutant(
        "optim",
        "optim/distributed/plan.py",
        "heapq.heapreplace(loads, (load + costs[i], rank))",
        "heapq.heapreplace(loads, (load + 1.0, rank))",
        ("tests/optim/test_layout.py::test_owners_are_within_a_third_of_the_best_and_equal_costs_go_round",),
    ),
    Mutant(
        "optim",
        "optim/distributed/plan.py",
        "self._planned = None  # if a layout raises, the next step makes a new plan",
        "pass",
        ("tests/optim/test_layout.py::test_a_step_after_a_refused_plan_is_planned_anew",),
    ),
    Mutant(
        "optim",
        "optim/distributed/exchange.py",
        "if owner != rank and grid.replica[owner] == replica",
        "if owner != rank",
        ("tests/optim/test_layout.py::test_simulated_messages_match_and_add_up_to_the_formula",),
    ),
    Mutant(
        "optim",
        "optim/distributed/exchange.py",
        "+ (grid.replicas * total - on_owner)",
        "+ (total - on_owner)",
        ("tests/optim/test_layout.py::test_simulated_messages_match_and_add_up_to_the_formula",),
    ),
    Mutant(
        "optim",
        "optim/distributed/grid.py",
        "return max(self.replica) + 1",
        "return len(self.replica)",
        ("tests/optim/test_layout.py::test_simulated_messages_match_and_add_up_to_the_formula",),
    ),
    Mutant(
        "optim",
        "optim/distributed/grid.py",
        "tuple(s for _, s in places), rank)",
        "tuple(r for r, _ in places), rank)",
        ("tests/optim/test_layout.py::test_simulated_messages_match_and_add_up_to_the_formula",),
    ),
    Mutant(
        "orthogonalize",
        "orthogonalize/workspace.py",
        "if kept.is_contiguous() and (kept.ndim < 2 or kept.stride()[-2:] == (kept.shape[-1], 1)):",
        "if kept.is_contiguous():",
        ("tests/optim/test_muon.py::test_a_step_leaves_no_trace_in_the_bits_of_steps_of_other_optimizers",),
    ),
    Mutant(
        "lab",
        "lab/data/batches.py",
        "(-m / s).float()",
        "(m / s).float()",
        ("tests/lab/data/test_batches.py", "-k", "normalised"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/recording/covered_run.py",
        "self._from_zero = size == 0.0 if",
        "self._from_zero = size >= 0.0 if",
        ("tests/diagnostics/recording/test_recorder.py", "-k", "zero or certificate or momenta"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/recording/covered_run.py",
        "nesterov=self._momentum_kind.nesterov",
        "nesterov=False",
        ("tests/diagnostics/recording/test_recorder.py", "-k", "default_muon"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/recording/covered_run.py",
        '(if they are estimates, so is the bound)"',
        '"',
        ("tests/diagnostics/recording/test_recorder.py", "-k", "default_muon"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/weight_decay.py",
        "operator_norm(part.select(W)) / unit",
        "operator_norm(part.select(W))",
        ("tests/diagnostics/certificates/test_network_certificate.py", "-k", "weight_decay"),
    ),
    Mutant(
        "diagnostics",
        "diagnostics/certificates/certification.py",
        "torch.lerp(G, M, beta)",
        "torch.lerp(M, G, beta)",
        ("tests/diagnostics/certificates/test_network_certificate.py", "-k", "orthogonalized"),
    ),
)


def preload() -> None:
    """Import what every run of pytest needs, so that the processes forked from here start in no time."""
    for name in ("torch", "numpy", "mpmath"):
        import_module(name)


def start_pytest(source: Path, select: tuple[str, ...], output: Path) -> int:
    """Fork a process that runs a selection of tests on a copy of the package; return its number."""
    process = os.fork()
    if process:
        return process
    os.setsid()  # so that all that the tests start can be killed with it
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.path[:0] = [str(source), str(ROOT)]
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    code = 3  # pytest's own, for an internal error
    try:
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *select]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for_pytest(process: int) -> int | None:
    """Return the exit code of a forked process; None if it did not end in time and was killed."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def first_failure(output: str) -> str:
    """Return the name of the first failed test, or of the module that cannot be imported."""
    found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", output, flags=re.M)
    return found[1] if found else "pytest did not finish"


def copy_of_the_package(folder: str) -> Path:
    """Copy the package into a folder; return the path to import it from."""
    return Path(shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__")))


class RunningMutant:
    """A mutant whose tests run in a forked process."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.start = mutant, time.perf_counter()
        self.folder = tempfile.TemporaryDirectory()
        source = copy_of_the_package(self.folder.name)
        path = source / "muonlab" / mutant.file
        path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        self.output = Path(self.folder.name) / "output"
        self.process = start_pytest(source, mutant.select, self.output)

    def outcome(self) -> Outcome:
        """Wait until the tests have ended; return what happened."""
        code, output = wait_for_pytest(self.process), self.output.read_text(encoding="utf-8", errors="replace")
        self.folder.cleanup()
        if code in (3, 4, 5):  # an error of pytest, a wrong argument, or no test selected
            raise SystemExit(f"{self.mutant.name}: {' '.join(self.mutant.select)} ran no test\n{output}")
        killed_by = f"no answer within {SECONDS} s" if code is None else first_failure(output) if code else ""
        return Outcome(self.mutant.room, self.mutant.name, killed_by, round(time.perf_counter() - self.start, 1))


def check_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Run the tests of all mutants, ``jobs`` at a time, and yield the outcomes in order."""
    preload()
    running: deque[RunningMutant] = deque()
    for mutant in mutants:
        if len(running) == jobs:
            yield running.popleft().outcome()
        running.append(RunningMutant(mutant))
    while running:
        yield running.popleft().outcome()


def stale(mutants: tuple[Mutant, ...]) -> list[str]:
    """Return the mutants whose text does not occur exactly once in their file."""
    return [m.name for m in mutants if (ROOT / "src/muonlab" / m.file).read_text(encoding="utf-8").count(m.old) != 1]


def main() -> int:
    """Check all mutants, or those asked for, and print what happened to each."""
    parser = argparse.ArgumentParser(description="Check that tests notice small faults.")
    parser.add_argument("--only", default="", help="only mutants whose room or name contains this text")
    parser.add_argument("--jobs", type=int, default=2, help="runs of pytest at the same time (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    chosen = tuple(m for m in MUTANTS if options.only in m.room or options.only in m.name)
    outdated = stale(chosen)
    outcomes: list[Outcome] = []
    for outcome in check_all([m for m in chosen if m.name not in outdated], options.jobs):
        outcomes.append(outcome)
        if not options.json:
            print(f"{outcome.seconds:6.1f} s  {outcome.mutant:<86}  {outcome.killed_by or 'SURVIVED'}", flush=True)
    survivors = [outcome.mutant for outcome in outcomes if not outcome.killed_by]
    if options.json:
        report = {
            "outcomes": [asdict(o) for o in outcomes],
            "survivors": survivors,
            "stale": outdated,
        }
        print(json.dumps(report, indent=1))
    else:
        for name in outdated:
            print(f"text does not occur exactly once: {name}")
        print(f"{len(outcomes) - len(survivors)} of {len(chosen)} mutants killed")
    return 1 if survivors or outdated or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
