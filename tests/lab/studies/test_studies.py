from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from muonlab.lab import paper
from muonlab.lab.data.registry import datasets
from muonlab.lab.models import build, models
from muonlab.lab.spec import Spec
from muonlab.lab.studies import describe, studies
from muonlab.lab.study import PROFILES, cell_name
from muonlab.lab.training.setup import check_spec
from tests.lab import printed as paper_prints

ROOT = Path(__file__).parents[3]
ALL = list(studies().values())
TRAINED = [study for study in ALL if isinstance(study.base, Spec)]
LOCAL = {"mnist": (60_000, 10_000), "cifar10": (10_000, 2_000), "cifar100": (5_000, 1_000),
         "tiny-imagenet": (5_000, 1_000), "fineweb": (1_300_000, 100_000), "digits": (1_437, 360)}  # fmt: skip
"""Examples in the folders that tests and small runs use: subsets and stand-ins among them."""

# --------------------------------------------------------------------------------------------------------- contract


def test_the_fourteen_studies_are_in_the_order_of_the_paper():
    names = (
        "q-ablation", "mlp-mnist", "resnet18-cifar100", "wrn-tiny-imagenet", "gpt-124m-fineweb", "gpt-1.3b-fineweb",
        "degree", "rank", "batch-size", "adhoc", "wall-clock", "theory-at-work", "quickstart",
        "lr-by-steps",
    )  # fmt: skip
    assert [(study.number, study.name) for study in ALL] == list(enumerate(names, start=1))


def test_a_study_has_claims_three_profiles_and_says_what_is_smaller():
    for study in ALL:
        assert all(claim.endswith(".") and claim[0].isupper() for claim in study.claims)
        assert tuple(study.profiles) == PROFILES
        for name, profile in study.profiles.items():
            assert bool(profile.differences) == (name != "paper" or study.name == "quickstart"), (study.name, name)
            assert {axis.name for axis in profile.axes} <= {axis.name for axis in study.axes}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_cell_can_be_built_and_has_a_unique_name(profile):
    for study in ALL:
        cells = study.cells(profile)
        names = {cell_name(cell.label, cell.spec.seed) for cell in cells}
        assert len(names) == len(cells)
        assert len({(cell.label, cell.spec.seed) for cell in cells}) == len(cells)
        assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
        assert all(isinstance(cell.spec, type(study.base)) for cell in cells)
        for cell in cells if study in TRAINED else ():
            if cell.spec.seed == 0:
                check_spec(cell.spec)


def test_settings_for_a_cpu_also_apply_to_a_numbered_one():
    sizes = [studies()["q-ablation"].cells("paper", device=d)[0].spec.batch_size for d in ("cpu", "cpu:0", "cuda")]
    assert sizes == [256, 256, 512]


# ------------------------------------------------------------------------------------------------ the paper's setting


def test_the_paper_profile_has_the_printed_hyper_parameters():
    for recipe in paper_prints.RECIPES:
        study = studies()[recipe.study]
        printed = {
            name: value
            for name, value in vars(recipe).items()
            if value is not None and name not in ("study", "runs", "cpu_batch_size")
        }
        for cell in study.cells("paper", device="cuda"):
            assert {name: getattr(cell.spec, name) for name in printed} == printed
        if recipe.runs is not None:
            assert study.profiles["paper"].seeds == recipe.runs
        if recipe.cpu_batch_size is not None:
            assert {cell.spec.batch_size for cell in study.cells("paper", device="cpu")} == {recipe.cpu_batch_size}


def test_the_other_studies_of_cifarnet_differ_from_the_first_in_one_thing():
    reference = next(cell.spec for cell in studies()["q-ablation"].cells("paper") if cell.label == "Muon (q=3)")
    same = reference.to_dict()
    for name, varied in (
        ("degree", {"kappa"}),
        ("rank", {"first_width", "watch", "optimizer"}),
        ("batch-size", {"batch_size"}),
        ("adhoc", {"polynomial"}),
    ):
        for cell in studies()[name].cells("paper", seeds=1):
            other = cell.spec.to_dict()
            assert {field for field in same if other[field] != same[field]} <= varied


def test_the_varied_values_are_those_of_the_paper():
    def values(study, field):
        return tuple(dict.fromkeys(getattr(cell.spec, field) for cell in studies()[study].cells("paper")))

    assert values("degree", "kappa") == paper.DEGREES
    assert values("rank", "first_width") == paper.RANKS
    assert values("batch-size", "batch_size") == paper.BATCH_SIZES
    assert {cell.spec.first_width for cell in studies()["rank"].cells("small")} == set(paper.RANKS)


def test_a_study_of_a_table_has_its_rows_and_names_it():
    for table in paper.TABLES:
        study = studies()[table.study]
        assert set(table.losses) <= {cell.label for cell in study.cells("paper")}
        assert table.item in study.items
    optimizers = {cell.points["optimizer"] for cell in studies()["rank"].cells("paper")}
    assert optimizers == {row.optimizer for row in paper.SLOPES}


def test_every_table_and_figure_of_the_experiments_has_one_study():
    items = [item for study in ALL for item in study.items if item.split()[0] in ("Table", "Figure")]
    wanted = {f"Table {n}" for n in range(2, 9)} | {f"Figure {n}" for n in range(1, 12)}
    assert sorted(items) == sorted(wanted)


def test_models_of_the_paper_profile_are_those_whose_parameters_are_printed():
    used = {study.base.model for study in TRAINED if study.name != "quickstart"}
    assert used == {entry.model for entry in paper_prints.PARAMETERS}


def test_the_watched_parameter_has_the_rank_of_the_axis():
    for profile in PROFILES:
        for cell in studies()["rank"].cells(profile, seeds=1):
            model = build(cell.spec.model, first_width=cell.spec.first_width)
            shape = dict(model.named_parameters())[cell.spec.watch].flatten(1).shape
            assert cell.points["rank"] == f"r={min(shape)}"


def test_smoothing_is_what_the_tables_can_have_been_made_with():
    for table in paper.TABLES[:4]:
        base = studies()[table.study].base
        floor = paper_prints.smoothing_floor(datasets()[base.dataset].classes, base.smoothing)
        assert floor <= min(map(min, table.losses.values()))


# ---------------------------------------------------------------------------------------------------------- profiles


def test_smaller_profiles_fit_into_the_local_folders():
    for study in TRAINED:
        for cell in (*study.cells("smoke", seeds=1), *study.cells("small", seeds=1)):
            train, test = LOCAL[cell.spec.dataset]
            assert study.name == "quickstart" or (cell.spec.train is not None and cell.spec.test is not None)
            assert (cell.spec.train or train) <= train
            assert (cell.spec.test or test) <= test


@pytest.mark.parametrize(
    ("dataset", "folder"),
    [
        pytest.param("mnist", "mnist", marks=pytest.mark.data("mnist")),
        pytest.param("cifar10", "cifar10-subset", marks=pytest.mark.data("cifar10-subset")),
        pytest.param("cifar100", "cifar100-standin", marks=pytest.mark.data("cifar100-standin")),
        pytest.param("tiny-imagenet", "tiny-imagenet-subset", marks=pytest.mark.data("tiny-imagenet-subset")),
    ],
)
def test_the_local_folders_have_so_many_images(dataset, folder):
    from pyarrow.parquet import read_metadata

    files = (Path(os.environ["MUONLAB_DATA"]) / folder).rglob("*.parquet")
    rows = {path.name.partition("-")[0]: read_metadata(path).num_rows for path in files}
    assert (rows.pop("train"), *rows.values()) == LOCAL[dataset]


def test_the_words_of_a_profile_have_the_numbers_of_its_settings():
    for study in TRAINED:
        for name in ("smoke", "small"):
            profile = study.profiles[name]
            for field in ("train", "test", "epochs", "steps", "block"):
                if profile.settings.get(field) is not None:
                    number = f"{profile.settings[field]:,}"
                    assert re.search(rf"\b{number}\b", profile.differences), (study.name, name, field)
            assert f"{profile.seeds} run" in profile.differences


def test_a_run_has_enough_updates_and_evaluations():
    for study in TRAINED:
        for profile in PROFILES:
            fewest = 180 if study.name == "batch-size" else 200 if profile == "small" else 1  # docs/adr/0020
            for cell in study.cells(profile, seeds=1):
                spec = cell.spec
                size = spec.train or datasets()[spec.dataset].train
                per_epoch = (size - 1) // spec.block // spec.batch_size if spec.block else size // spec.batch_size
                updates = spec.steps or spec.epochs * per_epoch
                assert updates // (spec.evaluate_every or per_epoch) >= 2, cell.label
                assert profile != "small" or updates >= fewest, cell.label
        assert study.profiles["small"].seeds >= 3


def test_every_batch_size_is_evaluated_after_the_same_number_of_images_at_the_small_profile():
    specs = [cell.spec for cell in studies()["batch-size"].cells("small", seeds=1)]
    assert {spec.batch_size * spec.evaluate_every for spec in specs} == {4_096}
    assert {spec.batch_size for spec in specs} == set(paper.BATCH_SIZES)


def test_the_language_models_hold_few_logits_at_once():
    # 50,257 logits of float32 for each token, some four times over: 8 GB at most
    for name in ("gpt-124m-fineweb", "gpt-1.3b-fineweb"):
        for profile in PROFILES:
            spec = studies()[name].cells(profile)[0].spec
            assert spec.micro_batch is not None
            assert 4 * 4 * 50_257 * spec.micro_batch * spec.block <= 8e9


def test_the_quickstart_has_one_size_and_records_certificates_of_every_muon():
    study = studies()["quickstart"]
    assert study.cells("small") == study.cells("paper")
    for cell in study.cells("small"):
        assert cell.spec.recorded == (cell.spec.optimizer != "sgdm")


def test_the_shapes_of_the_wall_clock_study_are_those_of_the_models():
    def matrices(name: str) -> set[tuple[int, int]]:
        import torch

        with torch.device("meta"):
            model = build(name)
        flat = [p.flatten(1).shape for p in model.parameters() if p.ndim > 1]
        return {tuple(sorted(shape)) for shape in flat}

    shapes = {(cell.spec.m, cell.spec.n) for cell in studies()["wall-clock"].cells("paper")}
    there = set().union(*(matrices(name) for name in ("mlp", "cifarnet", "gpt-124m", "gpt-1.3b")))
    assert shapes <= there
    assert {(64, 216), (64, 576), (256, 576), (256, 2304)} <= shapes
    assert all(model in models() for model in ("mlp", "cifarnet"))


# -------------------------------------------------------------------------------------------------------- documents


def test_the_table_of_the_guide_is_the_registry():
    text = (ROOT / "docs/guides/studies.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\| \d+ \|", line)
    ]
    assert rows == [
        [
            str(entry["number"]),
            f"`{entry['name']}`",
            entry["title"],
            ", ".join(entry["items"]) or "none",
            *(str(entry["cells"][profile]) for profile in PROFILES),
        ]
        for entry in describe()["studies"]
    ]
