"""Generated command lines and API calls, from a seed: arguments that are right, extreme, or of another kind."""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import muonlab
from muonlab import diagnostics, lab, polynomials, theory
from muonlab.cli import commands
from muonlab.optim import continue_adamw

NUMBERS = ("0", "1", "2", "3", "5", "-1", "0.5", "1e-300", "1e300", "nan", "inf", "-inf", "10000000", "9" * 400, "1e5")
WORDS = (
    "",
    "x",
    "none",
    "quintic",
    "jordan",
    "8x8",
    "8x",
    "0x0",
    "64x32",
    "frobenius",
    "\x1b[31m",
    "é",
    "a\0b",
    "--",
    "lr=1",
)
SETTINGS = (
    "lr=0.1",
    "lr=1e300",
    "lr=x",
    "steps=1",
    "steps=0",
    "steps=1e9",
    "q=-1",
    "q=99999",
    "kappa=400",
    "model=x",
    "=",
)


def files(folder: Path) -> tuple[str, ...]:
    """Return paths of a folder with things of every kind, most of which no command can use."""
    folder.mkdir(exist_ok=True)
    (folder / "empty").write_bytes(b"")
    (folder / "junk.npz").write_bytes(b"PK\x03\x04junk")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "list.toml").write_text("[[run]]\nstudy = 'quickstart'\nprofile = 'x'\n")
    (folder / "study_x.py").write_text("x = 1\n")  # an error of the user's own code keeps its traceback
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "study.json").write_text("{}")
    torch.save({"w": torch.eye(3)}, folder / "weights.pt")
    names = (
        "empty",
        "junk.npz",
        "deep.json",
        "list.toml",
        "study_x.py",
        "run",
        "weights.pt",
        "none",
        "none/deeper",
        ".",
    )
    return (*(str(folder / name) for name in names), "/dev/null", "/proc/self/mem", "")


def command_lines(seed: int, count: int, folder: Path) -> Iterator[list[str]]:
    """Yield command lines of all commands."""
    choose, paths = random.Random(seed), files(folder)
    kinds = [getattr(commands, name) for name in dir(commands) if name.endswith("Command") and not name.startswith("_")]
    kinds.remove(commands.PrintingCommand)
    for _ in range(count):
        kind = choose.choice(kinds)
        words = [kind.__name__.removesuffix("Command").lower()]
        fields = dataclasses.fields(kind)
        positional = {"file", "study", "folder", "what", "names", "files"}
        for field in fields:
            if field.name in positional and choose.random() < 0.9:
                words += _values(choose, field.name, paths)
        for field in choose.sample(fields, choose.randrange(min(4, len(fields)) + 1)):
            if field.name in positional or field.name in ("open", "recalibrate", "debug"):  # shows tracebacks
                continue
            words.append(f"--{field.name.replace('_', '-')}")
            if field.type != "bool" or choose.random() < 0.1:
                words += _values(choose, field.name, paths)
        if words[0] in ("run", "queue") and choose.random() < 0.9:  # a run writes somewhere: into the folder
            words += ["--out", str(folder / "out" / str(choose.randrange(5)))]
        if words[0] == "run":
            words += ["--set", "steps=1", "epochs=none", "train=64", "test=32"]
        yield words


def _values(choose: random.Random, name: str, paths: tuple[str, ...]) -> list[str]:
    right = {
        "shape": ["8x8", "16x8"],
        "what": ["study", "studies", "models", "polynomials", "status", "prepare"],
        "study": ["quickstart", "rank", "adhoc"],
        "names": ["digits", "x"],
        "profile": ["smoke", "small", "paper"],
        "set": list(SETTINGS),
        "lr_schedule": ["cosine", "wsd"],
        "device": ["cpu", "cuda", "cuda:9", "tpu"],
    }.get(name, [])
    if name in ("file", "files", "folder", "out", "data"):
        right = list(paths)
    pool = right if right and choose.random() < 0.7 else [*NUMBERS * 4, *WORDS]
    several = name in ("set", "names", "files") and choose.random() < 0.3
    return [choose.choice(pool) for _ in range(2 if several else 1)]


# ------------------------------------------------------------------------------------------------------------ API calls


def _junk() -> list[Any]:
    eye = torch.eye(3)
    return [
        None, True, 0, 1, 2, 3, -1, 0.5, 1e-300, 1e300, 10**400, float("nan"), float("inf"), 1j, "", "x", "quintic",
        b"x", (), [], {}, [1, 2], (8, 4), {"a": 1}, object(), eye, eye.double(), eye.half(), eye[0], eye.to_sparse(),
        eye * float("nan"), eye.int(), eye * 1j, torch.empty(0, 3), torch.zeros(2, 3, 3),
        torch.empty(3, 3, device="meta"),
        torch.nn.Parameter(eye.clone()), [torch.nn.Parameter(eye.clone())], [torch.nn.Parameter(eye[0].clone())],
        torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), lambda x: x,
        print, int,
        muonlab.NewtonSchulz("quintic", steps=2), muonlab.ExactPolar(), polynomials.taylor(2), preset_schedule(),
        muonlab.Muon([torch.nn.Parameter(eye.clone())]), torch.optim.SGD([torch.nn.Parameter(eye.clone())]),
    ]  # fmt: skip


def preset_schedule() -> polynomials.Schedule:
    """Return five quintic steps."""
    return polynomials.preset("quintic").schedule(5)


def load(group: object, name: object, value: object) -> None:
    """Load a state of Muon with one value exchanged."""
    saved = muonlab.Muon([("w", torch.nn.Parameter(torch.eye(3)))]).state_dict()
    part = saved if group is None else saved["param_groups"][0] if isinstance(group, int) else saved["state"][0]
    if isinstance(value, torch.nn.Module):  # no plain value, and torch cannot rebuild it
        value = "x"
    part[name if isinstance(name, str) else "momentum_buffer"] = value
    muonlab.Muon([("w", torch.nn.Parameter(torch.eye(3)))]).load_state_dict(saved)


def functions() -> list[Callable[..., Any]]:
    """Return what is called: public functions and classes that take arguments of a user."""
    public = [muonlab.SGDM, muonlab.Muon, muonlab.Muon.paper, muonlab.Muon.torch, muonlab.MuonWithAux]
    public += [muonlab.NewtonSchulz, muonlab.ExactPolar, muonlab.newton_schulz, muonlab.polar, muonlab.split_params]
    public += [continue_adamw, load, lab.Spec, lab.load_results, lab.Point]
    public += [diagnostics.certify, diagnostics.Recorder, diagnostics.AutoSteps, diagnostics.spectrum]
    public += [polynomials.taylor, polynomials.preset, polynomials.polar_express, polynomials.Polynomial]
    public += [polynomials.Schedule.repeat, polynomials.analyse]
    names = "chi polar_error residual_after alignment_bound alignment_floor muon_bound sgdm_bound iterations_for flops"
    names += " run_bound schedule_bound trajectory_bound tuned_muon schedule_error descent_floor momentum_factors"
    return public + [getattr(theory, name) for name in names.split()]


RIGHT: dict[str, list[Any]] = {
    "lr": [0.1], "momentum": [0.9], "steps": [3], "kappa": [2], "q": [3], "B": [8], "r": [4], "L": [1.0], "D": [1.0],
    "sigma": [0.1], "T": [100], "polynomial": ["quintic"], "prescale": ["frobenius"], "rho": [0.5], "delta": [0.3],
    "etas": [[0.1, 0.1]], "betas": [[0.9, 0.9]], "eta": [0.1], "beta": [0.9], "sigma_min": [0.1], "name": ["quintic"],
}  # fmt: skip


def api_calls(seed: int, count: int) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Yield functions with arguments by name: about half of them right where the name says what is."""
    choose, called = random.Random(seed), functions()
    for _ in range(count):
        function, junk, arguments = choose.choice(called), _junk(), {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                continue
            required = parameter.default is parameter.empty
            if not required and choose.random() < 0.7:
                continue
            right = RIGHT.get(name, [])
            arguments[name] = right[0] if right and choose.random() < 0.6 else choose.choice(junk)
        yield function, arguments
