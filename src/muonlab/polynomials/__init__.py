"""Exact polynomials of Newton-Schulz steps, and schedules of them."""

from muonlab.polynomials.base import Polynomial as Polynomial
from muonlab.polynomials.base import Schedule as Schedule
from muonlab.polynomials.minimax import minimax_step as minimax_step
from muonlab.polynomials.minimax import polar_express as polar_express
from muonlab.polynomials.presets import PRESETS as PRESETS
from muonlab.polynomials.presets import Preset as Preset
from muonlab.polynomials.presets import preset as preset
from muonlab.polynomials.presets import register as register
from muonlab.polynomials.properties import Analysis as Analysis
from muonlab.polynomials.properties import analyse as analyse
from muonlab.polynomials.taylor_polynomial import taylor as taylor
