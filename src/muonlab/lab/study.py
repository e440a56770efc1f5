"""A study as a value: a base spec, axes to vary, seeds, profiles, and the claims of the paper that it tests."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
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
    """One value on an axis: a label for curves and tables, and the settings that it stands for."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """What a study varies, with its values in the order of the paper."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Profile:
    """How much of a study is run.

    Args:
        seeds: number of runs of each cell, with seeds 0, 1, …
        words: what differs from the paper, in one sentence; empty at the paper's own setting.
        settings: that replace those of the study's base.
        axes: that replace the study's own, by name: fewer or other points.
        on_cpu: settings that apply on a CPU only.
        threads: of torch for a cell, where more would not help; None is the cores divided by the jobs.
    """

    seeds: int
    words: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[Axis, ...] = ()
    on_cpu: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a study: a place on every axis, and the spec that it means (seed included)."""

    points: Mapping[str, str]
    spec: Settings

    @property
    def label(self) -> str:
        """The points in words, as figures name a curve.

        Example:
            >>> Cell({"optimizer": "Muon (q=3)", "rank": "16"}, Settings()).label
            'Muon (q=3), 16'
        """
        return ", ".join(self.points.values())

    @property
    def name(self) -> str:
        """The label and the seed in letters that any file system takes."""
        return cell_name(self.label, self.spec.seed)


def cell_name(label: str, seed: int) -> str:
    """Return a label and a seed in letters that any file system takes.

    Example:
        >>> cell_name("Muon (q=3), r=16", 0)
        'muon-q-3-r-16-seed0'
    """
    plain = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in label.lower())
    return "-".join([*(part for part in plain.split("-") if part), f"seed{seed}"])


@dataclass(frozen=True)
class Study:
    """Cells to run, and what the paper claims of them.

    Args:
        number: its place in lists.
        name: on the command line.
        title: for people.
        claims: of the paper, one sentence each, that the study tests.
        items: tables and figures of the paper that it makes again.
        base: the spec that the axes and profiles vary, at the paper's setting.
        axes: what is varied; every combination is a cell.
        profiles: ``smoke``, ``small`` and ``paper``.
        work: ``module:function`` that runs a cell; named, so that listing studies loads no torch.
        analysis: ``module:function`` that draws a table of the paper from all results together; empty for none.
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
        if smoke.threads is None:  # its pieces of work are too small to share
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
        """Return every cell of a profile, seeds innermost; ``settings`` have the last word except over the axes."""
        _checks.one_of("profile", profile, PROFILES)
        chosen = self.profiles[profile]  # type: ignore[index]
        count = chosen.seeds if seeds is None else _checks.integer("seeds", seeds, at_least=1)
        if count > MOST_SEEDS:
            raise ValueError(f"seeds must be at most {MOST_SEEDS:,}, got {count:,}: a handful shows the spread")
        base = self.base.changed({**chosen.settings, **(chosen.on_cpu if device.partition(":")[0] == "cpu" else {})})
        given = dict(settings or {})
        taken = {name for axis in self._axes(chosen) for point in axis.points for name in point.settings}
        for name in ("seed", "threads", "device", *sorted(taken)):
            if name in given:
                option = {"seed": "seeds"}.get(name, name)
                way = "an axis of the study: run another" if name in taken else f"an option of its own: use --{option}"
                raise ValueError(f"a setting must not contradict the study, got {name!r}, which is {way}")
        base = base.changed({**given, "device": device, "threads": threads})
        return tuple(
            Cell({axis: point.label for axis, point in place.items()}, spec.changed({"seed": seed}))
            for place, spec in self._places(base, chosen)
            for seed in range(count)
        )

    def _axes(self, profile: Profile) -> tuple[Axis, ...]:
        others = {axis.name: axis for axis in profile.axes}
        return tuple(others.get(axis.name, axis) for axis in self.axes)

    def _places(self, base: Settings, profile: Profile) -> Iterator[tuple[dict[str, Point], Settings]]:
        axes = self._axes(profile)
        for points in itertools.product(*(axis.points for axis in axes)):
            changes = {name: value for point in points for name, value in point.settings.items()}
            yield {axis.name: point for axis, point in zip(axes, points, strict=True)}, base.changed(changes)
