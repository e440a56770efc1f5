"""Measured δ, ε, ρ and norms; certificates; the recorder that watches an optimizer from outside; the planner."""

from muonlab.diagnostics.autosteps import AutoSteps as AutoSteps
from muonlab.diagnostics.calibration import calibrate as calibrate
from muonlab.diagnostics.certificate import Certificate as Certificate
from muonlab.diagnostics.certificate import Verdict as Verdict
from muonlab.diagnostics.certify import certify as certify
from muonlab.diagnostics.network import NetworkCertificate as NetworkCertificate
from muonlab.diagnostics.planner import ModelPlan as ModelPlan
from muonlab.diagnostics.planner import Plan as Plan
from muonlab.diagnostics.planner import plan as plan
from muonlab.diagnostics.recorder import Recorder as Recorder
from muonlab.diagnostics.spectra import Spectrum as Spectrum
from muonlab.diagnostics.spectra import alignment_of as alignment_of
from muonlab.diagnostics.spectra import respond as respond
from muonlab.diagnostics.spectra import spectra as spectra
from muonlab.diagnostics.spectra import spectrum as spectrum
