"""A study: a base spec, axes to vary, seeds, profiles, and the claims of the paper that it tests."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from muonlab import _checks
from muonlab.lab.settings import Settings

ProfileName = Literal["smoke", "small", "paper"]
MOST_SEEDS = 1_000
PROFILES: tuple[ProfileName, ...] = ("smoke", "small", "paper")
"""The profiles of the paper's studies; a study of your own may have others."""
WHOLE = "whole"
"""The profile of a study that has only one."""
Work = str | Callable[..., Any]


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

    @classmethod
    def of(cls, field: str, values: Iterable[Any]) -> Axis:
        """Return the axis of a field; the values may have labels.

        Example:
            >>> [point.label for point in Axis.of("lr", (0.02, 0.08)).points]
            ['lr=0.02', 'lr=0.08']
            >>> Axis.of("optimizer", {"SGD-M": "sgdm"}).points
            (Point(label='SGD-M', settings={'optimizer': 'sgdm'}),)
        """
        values = values if isinstance(values, Mapping) else list(values)
        named = values if isinstance(values, Mapping) else {f"{field}={_label(value)}": value for value in values}
        if len(named) < len(values):
            raise ValueError(
                f"the values of an axis need labels of their own, got two of one name for {field}: write "
                f"{{{field!r}: {{'label': value, …}}}}"
            )
        return cls(field, tuple(Point(str(label), {field: value}) for label, value in named.items()))


def _label(value: Any) -> str:
    """Return a value in a label: numbers as they are written, objects by their name."""
    return str(getattr(value, "name", None) or getattr(value, "__qualname__", value))


@dataclass(frozen=True)
class Profile:
    """The size at which a study is run.

    Args:
        seeds: number of runs of each cell, with seeds 0, 1, …
        differences: what differs from the paper, in one sentence; empty for the setting of the paper, and for studies
            that are not of the paper.
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

    def differences_with(self, runs: int) -> str:
        """Return the differences with the number of runs that were made.

        Example:
            >>> Profile(3, "batches of 32, 3 runs, in float32").differences_with(1)
            'batches of 32, 1 run, in float32'
        """
        return re.sub(r"\b\d+ runs?(?=, |$)", f"{runs} run{'s' if runs != 1 else ''}", self.differences)


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
    """Cells to run, and the claims about them.

    Args:
        name: on the command line, and of the run directory.
        base: the spec that the axes and profiles vary; for studies of the paper at its setting.
        axes: what is varied; every combination of points is a cell. A mapping from fields to their values, or to
            mappings from labels to values; or axes whose points set several fields each.
        seeds: number of runs of each cell, for a study without profiles.
        profiles: sizes at which it can be run; without any there is one, ``whole``.
        title: one line for lists and pages; empty is the name.
        claims: of the paper that the study tests, one sentence each.
        items: tables and figures of the paper that it reproduces.
        number: position in lists.
        work: what runs a cell: a function ``(spec, context)`` that returns a summary, with a :class:`CellContext`; or
            ``module:function``, so that listing studies does not load torch.
        analysis: ``module:function`` that computes a table of the paper from all results; empty for none.
        cache: whether finished cells are kept. Without, each run of the study has cells of its own; for parts that
            cannot be identified, such as a lambda.
        file: the file that defines it, as it was given on the command line; empty for studies of the package.

    Example:
        >>> from muonlab.lab.spec import Spec
        >>> study = Study("rates", Spec(steps=20), {"lr": (0.02, 0.08)}, seeds=2)
        >>> [(cell.label, cell.spec.lr, cell.spec.seed) for cell in study.cells()]
        [('lr=0.02', 0.02, 0), ('lr=0.02', 0.02, 1), ('lr=0.08', 0.08, 0), ('lr=0.08', 0.08, 1)]
    """

    name: str
    base: Settings
    axes: tuple[Axis, ...] | Mapping[str, Any] = ()
    seeds: int = 1
    _: dataclasses.KW_ONLY
    profiles: Mapping[Any, Profile] = field(default_factory=dict)
    title: str = ""
    claims: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    number: int = 0
    work: Work = "muonlab.lab.training.loop:train"
    analysis: str = ""
    cache: bool = True
    file: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name) or self.name.startswith("."):
            raise ValueError(f"a study's name is that of a folder, got {self.name!r}: use letters, digits and hyphens")
        _checks.integer("seeds", self.seeds, at_least=1)
        axes = [Axis.of(*each) for each in self.axes.items()] if isinstance(self.axes, Mapping) else list(self.axes)
        if not all(axis.points for axis in axes):
            raise ValueError(f"an axis must have a value, got none in {self.name!r}: add one, or drop the axis")
        profiles = dict(self.profiles) or {WHOLE: Profile(self.seeds)}
        if "smoke" in profiles and profiles["smoke"].threads is None:  # its matrices are too small for several threads
            profiles["smoke"] = dataclasses.replace(profiles["smoke"], threads=1)
        object.__setattr__(self, "axes", tuple(axes) or (Axis("study", (Point(self.name, {}),)),))
        object.__setattr__(self, "profiles", MappingProxyType(profiles))
        object.__setattr__(self, "title", self.title or self.name)

    def folder_name(self, profile: str) -> str:
        """Return the usual name of the run directory of a profile."""
        return self.name if len(self.profiles) == 1 else f"{self.name}-{profile}"

    @property
    def _axes(self) -> tuple[Axis, ...]:
        assert isinstance(self.axes, tuple)
        return self.axes

    def profile_name(self, name: str | None) -> str:
        """Return the checked name of a profile; None is ``smoke`` if there is one, else the first."""
        if name is None:
            return "smoke" if "smoke" in self.profiles else str(next(iter(self.profiles)))
        return str(_checks.one_of("profile", name, tuple(self.profiles)))

    def cells(
        self,
        profile: str | None = None,
        *,
        seeds: int | None = None,
        device: str = "cpu",
        threads: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> tuple[Cell, ...]:
        """Return every cell of a profile, seeds innermost.

        ``settings`` replace fields of the spec in every cell; a field that an axis varies is refused.
        """
        selected = self.profiles[self.profile_name(profile)]
        count = selected.seeds if seeds is None else _checks.integer("seeds", seeds, at_least=1)
        if count > MOST_SEEDS:
            raise ValueError(f"seeds must be at most {MOST_SEEDS:,}, got {count:,}: a few are enough")
        on_cpu = selected.on_cpu if device.partition(":")[0] == "cpu" else {}
        replaced = {axis.name: axis for axis in selected.axes}
        axes = [replaced.get(axis.name, axis) for axis in self._axes]
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
        is_varied = name in varied or name.partition(".")[0] in varied
        if is_varied or name in options:
            reason = "varied by the study: run another" if is_varied else f"an option: use --{options[name]}"
            raise ValueError(f"a setting must not contradict the study, got {name!r}, which is {reason}")
