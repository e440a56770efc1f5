"""Singular values and alignment of matrices; certificates; a recorder for training; a planner of the steps."""

from muonlab.diagnostics.benchmarking import bench as bench
from muonlab.diagnostics.certificates.certificate import Certificate as Certificate
from muonlab.diagnostics.certificates.certificate import Verdict as Verdict
from muonlab.diagnostics.certificates.certification import certify as certify
from muonlab.diagnostics.certificates.network_certificate import NetworkCertificate as NetworkCertificate
from muonlab.diagnostics.matrix_spectra import Spectrum as Spectrum
from muonlab.diagnostics.matrix_spectra import alignment_of as alignment_of
from muonlab.diagnostics.matrix_spectra import respond as respond
from muonlab.diagnostics.matrix_spectra import spectra as spectra
from muonlab.diagnostics.matrix_spectra import spectrum as spectrum
from muonlab.diagnostics.planning.autosteps import AutoSteps as AutoSteps
from muonlab.diagnostics.planning.calibration import calibrate as calibrate
from muonlab.diagnostics.planning.planner import ModelPlan as ModelPlan
from muonlab.diagnostics.planning.planner import Plan as Plan
from muonlab.diagnostics.planning.planner import plan as plan
from muonlab.diagnostics.recording.recorder import Recorder as Recorder
