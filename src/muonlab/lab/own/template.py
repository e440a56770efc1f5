"""A study of your own: run it with muonlab run THIS_FILE; every part can be replaced.

Results are in runs/my-study; run the same command again to resume, or after an edit. What else is possible is in
docs/guides/own-study.md.
"""

import torch
from torch import nn

from muonlab.lab import Spec, Study, model, optimizer


def waves() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return training and test data, each (x, y); or tokens, as one long tensor of whole numbers each."""
    x = torch.rand(1_200, 8, generator=torch.Generator().manual_seed(0))
    y = (6 * x).sin().sum(1, keepdim=True)
    return (x[:1_000], y[:1_000]), (x[1_000:], y[1_000:])


class Net(nn.Module):
    """A small network; Muon trains its hidden matrix, AdamW the rest."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.hidden, self.last = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a batch."""
        out: torch.Tensor = self.last(self.hidden(self.first(x).relu()).relu())
        return out


STUDY = Study(
    "my-study",
    Spec(
        model=model(Net, width=32),  # or a name of muonlab list models
        dataset=waves,  # or a name of muonlab list datasets
        loss=nn.functional.mse_loss,  # without it: cross-entropy, for whole numbers as targets
        batch_size=50,
        steps=200,
        validation=200,  # training examples by which muonlab.lab.best chooses settings
    ),
    {  # every combination is run with every seed
        "optimizer": {
            "AdamW": torch.optim.AdamW,
            "SGD-M": optimizer(torch.optim.SGD, momentum=0.9),
            "Muon": optimizer("muon", rest=torch.optim.AdamW),
        },
        "lr": (0.003, 0.01, 0.03),
    },
    seeds=2,
)
