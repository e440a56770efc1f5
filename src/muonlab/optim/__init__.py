"""Optimizers: Muon, SGDM, their combination with an auxiliary optimizer, and the split of parameters."""

from muonlab.optim.combined import MuonWithAux as MuonWithAux
from muonlab.optim.continuation import continue_adamw as continue_adamw
from muonlab.optim.muon import Muon as Muon
from muonlab.optim.orthogonalizer import ExactPolar as ExactPolar
from muonlab.optim.orthogonalizer import NewtonSchulz as NewtonSchulz
from muonlab.optim.registry import describe as describe
from muonlab.optim.registry import optimizers as optimizers
from muonlab.optim.sgdm import SGDM as SGDM
from muonlab.optim.split import Split as Split
from muonlab.optim.split import split_params as split_params
