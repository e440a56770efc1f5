"""Study files of a user, as text, and how a test loads them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from muonlab.lab import Study
from muonlab.lab.own.study_file import load_study

SMALLEST = """
import torch
from torch import nn
from muonlab.lab import Spec, Study

SCALE = 1.0


def scaled(x):
    return SCALE * x


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.second(self.first(scaled(x)).relu()).relu())


def waves():
    x = torch.linspace(-1, 1, 5 * 120).view(5, 120).T.contiguous()
    y = x.sin().sum(1, keepdim=True)
    return (x[:96], y[:96]), (x[96:], y[96:])


STUDY = Study("mine", Spec(model=Net, dataset=waves, loss=nn.functional.mse_loss, optimizer="AdamW", batch_size=16,
                           steps=12))
"""

_TIMES = itertools.count(1)


def write(folder: Path, text: str = SMALLEST, name: str = "their_study.py") -> Path:
    """Write a study file with a time of its own, as a user's edits have."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    moment = 1_000_000_000 + next(_TIMES)
    os.utime(path, (moment, moment))
    return path


def loaded(folder: Path, text: str = SMALLEST) -> Study:
    """Return the study of a file with this text."""
    return load_study(str(write(folder, text)))
