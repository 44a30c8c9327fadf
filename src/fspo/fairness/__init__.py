"""Is clipping fair? Rates by length with intervals, the LRE, the band from data, H, and the cosine guarantee.

>>> import numpy as np, fspo
>>> lengths = np.repeat([10, 100], 50)
>>> accepted = np.where(lengths == 10, 1.0, np.arange(100) % 2)  # half of the long responses are clipped away
>>> report = fspo.fairness.measure(lengths, accepted, bins=2)
>>> report.clip_rate, [bin.clip_rate for bin in report.bins], round(report.lre, 3)
(0.25, [0.0, 0.5], 0.333)
"""

from fspo.fairness.bins import FEW_VALUES, Bins, Interval, cut, partition, quantile_edges
from fspo.fairness.calibrate import Calibration, PartitionBands, calibrate, partition_bands
from fspo.fairness.cosine import CosineBound, MeasuredCosine, cosine_bound, measure_cosine
from fspo.fairness.measure import FAIR, FEW, Bin, FairnessReport, homogeneous, measure, report_of_bins, wilson
from fspo.fairness.robust_band import (
    BandExponent,
    band_exponent,
    fresh_rate_interval,
    heavy_tails,
    middle_law,
    outer_value,
    robust_drift,
    robust_law,
    rows_needed,
    wild_rows,
)
from fspo.fairness.scaling import ScalingLaw, fit_of_sums, scaling_law, scaling_law_of_sums

__all__ = [
    "FAIR",
    "FEW",
    "FEW_VALUES",
    "BandExponent",
    "Bin",
    "Bins",
    "Calibration",
    "CosineBound",
    "FairnessReport",
    "Interval",
    "MeasuredCosine",
    "PartitionBands",
    "ScalingLaw",
    "band_exponent",
    "calibrate",
    "cosine_bound",
    "cut",
    "fit_of_sums",
    "fresh_rate_interval",
    "heavy_tails",
    "homogeneous",
    "measure",
    "measure_cosine",
    "middle_law",
    "outer_value",
    "partition",
    "partition_bands",
    "quantile_edges",
    "report_of_bins",
    "robust_drift",
    "robust_law",
    "rows_needed",
    "scaling_law",
    "scaling_law_of_sums",
    "wild_rows",
    "wilson",
]
