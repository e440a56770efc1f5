"""A study: a base spec, axes to vary, seeds, profiles, and the claims of the paper that it tests."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from muonlab import _checks
from muonlab.lab.settings import Settings

ProfileName = Literal["smoke", "small", "paper"]
MOST_SEEDS = 1_000
PROFILES: tuple[ProfileName, ...] = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Point:
    """One value on an axis: a label for curves and tables, and its settings."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """What a study varies; its values are in the order of the paper."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Profile:
    """The size at which a study is run.

    Args:
        seeds: number of runs of each cell, with seeds 0, 1, …
        differences: what differs from the paper, in one sentence; empty for the setting of the paper.
        settings: fields of the study's base to replace.
        axes: axes that replace the study's axes of the same name.
        on_cpu: settings that apply on a CPU only.
        threads: torch threads of a cell; None is the cores divided by the jobs.
    """

    seeds: int
    differences: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[Axis, ...] = ()
    on_cpu: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a study: a point on every axis, and the resulting spec, which includes the seed."""

    points: Mapping[str, str]
    spec: Settings

    @property
    def label(self) -> str:
        """The labels of its points, which also name its curve in figures.

        Example:
            >>> Cell({"optimizer": "Muon (q=3)", "rank": "16"}, Settings()).label
            'Muon (q=3), 16'
        """
        return ", ".join(self.points.values())

    @property
    def name(self) -> str:
        """The label and the seed as a file name."""
        return cell_name(self.label, self.spec.seed)


def cell_name(label: str, seed: int) -> str:
    """Return a label and a seed as a file name of lower-case ASCII letters, digits and hyphens.

    Example:
        >>> cell_name("Muon (q=3), r=16", 0)
        'muon-q-3-r-16-seed0'
    """
    plain = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in label.lower())
    return "-".join([*(part for part in plain.split("-") if part), f"seed{seed}"])


@dataclass(frozen=True)
class Study:
    """Cells to run, and the claims of the paper about them.

    Args:
        number: position in lists.
        name: on the command line.
        title: one line for lists and pages.
        claims: of the paper that the study tests, one sentence each.
        items: tables and figures of the paper that it reproduces.
        base: the spec that the axes and profiles vary, at the paper's setting.
        axes: what is varied; every combination of points is a cell.
        profiles: ``smoke``, ``small`` and ``paper``.
        work: ``module:function`` that runs a cell; a name, so that listing studies does not load torch.
        analysis: ``module:function`` that computes a table of the paper from all results; empty for none.
    """

    number: int
    name: str
    title: str
    claims: tuple[str, ...]
    items: tuple[str, ...]
    base: Settings
    axes: tuple[Axis, ...]
    profiles: Mapping[ProfileName, Profile]
    work: str = "muonlab.lab.training.loop:train"
    analysis: str = ""

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"a study must name the claims that it tests, got none in {self.name!r}: add one")
        for name in PROFILES:
            if name not in self.profiles:
                raise ValueError(f"a study must have a profile {name!r}, got {self.name!r} without: add it")
        smoke = self.profiles["smoke"]
        if smoke.threads is None:  # its matrices are too small for several threads
            smoke = dataclasses.replace(smoke, threads=1)
        object.__setattr__(self, "profiles", MappingProxyType({**self.profiles, "smoke": smoke}))

    def cells(
        self,
        profile: str,
        *,
        seeds: int | None = None,
        device: str = "cpu",
        threads: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> tuple[Cell, ...]:
        """Return every cell of a profile, seeds innermost.

        ``settings`` replace fields of the spec in every cell; a field that an axis varies is refused.
        """
        _checks.one_of("profile", profile, PROFILES)
        selected = self.profiles[profile]  # type: ignore[index]
        count = selected.seeds if seeds is None else _checks.integer("seeds", seeds, at_least=1)
        if count > MOST_SEEDS:
            raise ValueError(f"seeds must be at most {MOST_SEEDS:,}, got {count:,}: a few are enough")
        on_cpu = selected.on_cpu if device.partition(":")[0] == "cpu" else {}
        replaced = {axis.name: axis for axis in selected.axes}
        axes = [replaced.get(axis.name, axis) for axis in self.axes]
        _check_settings(settings or {}, axes)
        base = self.base.changed({**selected.settings, **on_cpu})
        base = base.changed({**(settings or {}), "device": device, "threads": threads})
        cells = []
        for points in itertools.product(*(axis.points for axis in axes)):
            spec = base.changed({name: value for point in points for name, value in point.settings.items()})
            labels = {axis.name: point.label for axis, point in zip(axes, points, strict=True)}
            cells += [Cell(labels, spec.changed({"seed": seed})) for seed in range(count)]
        return tuple(cells)


def _check_settings(settings: Mapping[str, Any], axes: Iterable[Axis]) -> None:
    """Refuse settings that an axis varies, or that are options of their own."""
    varied = {name for axis in axes for point in axis.points for name in point.settings}
    options = {"seed": "seeds", "threads": "threads", "device": "device"}
    for name in settings:
        if name in varied or name in options:
            reason = "varied by the study: run another" if name in varied else f"an option: use --{options[name]}"
            raise ValueError(f"a setting must not contradict the study, got {name!r}, which is {reason}")
