"""The paper's statements as numbers: residuals, rates, the alignment theorem, its floor, and cost. No torch."""

from muonlab.theory.alignment import Alignment as Alignment
from muonlab.theory.alignment import RunBound as RunBound
from muonlab.theory.alignment import alignment_bound as alignment_bound
from muonlab.theory.alignment import momentum_factors as momentum_factors
from muonlab.theory.alignment import network_alignment as network_alignment
from muonlab.theory.alignment import run_bound as run_bound
from muonlab.theory.alignment import staleness as staleness
from muonlab.theory.bound import Bound as Bound
from muonlab.theory.cost import flops as flops
from muonlab.theory.cost import wall_clock_ratio as wall_clock_ratio
from muonlab.theory.floor import alignment_floor as alignment_floor
from muonlab.theory.floor import descent_floor as descent_floor
from muonlab.theory.iterations import Iterations as Iterations
from muonlab.theory.iterations import iterations_for as iterations_for
from muonlab.theory.rates import Tuned as Tuned
from muonlab.theory.rates import muon_bound as muon_bound
from muonlab.theory.rates import sgdm_bound as sgdm_bound
from muonlab.theory.rates import tuned_muon as tuned_muon
from muonlab.theory.rates import tuned_sgdm as tuned_sgdm
from muonlab.theory.residual import ScheduleError as ScheduleError
from muonlab.theory.residual import chi as chi
from muonlab.theory.residual import polar_error as polar_error
from muonlab.theory.residual import residual_after as residual_after
from muonlab.theory.residual import schedule_error as schedule_error
