"""The benchmark of a device: first whether its results are right, then how long steps take beside other packages."""

from muonlab.diagnostics.benchmarking.device_report import bench

__all__ = ["bench"]
