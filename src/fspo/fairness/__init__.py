"""Is clipping fair? Rates by length with intervals, the LRE, the band from data, H, and the cosine guarantee.

>>> import numpy as np, fspo
>>> lengths = np.repeat([10, 100], 50)
>>> accepted = np.where(lengths == 10, 1.0, np.arange(100) % 2)  # half of the long responses are clipped away
>>> report = fspo.fairness.measure(lengths, accepted, bins=2)
>>> report.clip_rate, [bin.clip_rate for bin in report.bins], round(report.lre, 3)
(0.25, [0.0, 0.5], 0.333)
"""

from fspo.fairness.calibrate import Calibration, PartitionBands, calibrate, partition_bands
from fspo.fairness.cosine import cosine_bound, measure_cosine
from fspo.fairness.measure import Bin, FairnessReport, measure, wilson
from fspo.fairness.scaling import ScalingLaw, scaling_law

__all__ = [
    "Bin", "Calibration", "FairnessReport", "PartitionBands", "ScalingLaw", "calibrate", "cosine_bound", "measure",
    "measure_cosine", "partition_bands", "scaling_law", "wilson",
]  # fmt: skip
