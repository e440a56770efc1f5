"""Matrices in, (near-)orthogonal matrices out: pure functions on tensors."""

from muonlab.orthogonalize.iteration import as_schedule as as_schedule
from muonlab.orthogonalize.iteration import newton_schulz as newton_schulz
from muonlab.orthogonalize.polar_factor import POLAR_METHODS as POLAR_METHODS
from muonlab.orthogonalize.polar_factor import polar as polar
from muonlab.orthogonalize.prescale import PRESCALES as PRESCALES
from muonlab.orthogonalize.prescale import spectral_bound as spectral_bound
from muonlab.orthogonalize.segments import ACCURACIES as ACCURACIES
from muonlab.orthogonalize.segments import METHODS as METHODS
from muonlab.orthogonalize.workspace import release as release
