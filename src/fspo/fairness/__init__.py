"""Is clipping fair? Rates by length with intervals, the LRE, the band from data, H, and the cosine guarantee."""

from fspo.fairness.bins import FEW_VALUES, Bins, Interval, cut, partition, quantile_edges
from fspo.fairness.calibrate import Calibration, PartitionBands, calibrate, partition_bands
from fspo.fairness.cosine import CosineBound, MeasuredCosine, cosine_bound, measure_cosine
from fspo.fairness.measure import Bin, FairnessReport, measure, report_of_bins, wilson
from fspo.fairness.scaling import ScalingLaw, fit_of_sums, scaling_law, scaling_law_of_sums

__all__ = [
    "FEW_VALUES",
    "Bin",
    "Bins",
    "Calibration",
    "CosineBound",
    "FairnessReport",
    "Interval",
    "MeasuredCosine",
    "PartitionBands",
    "ScalingLaw",
    "calibrate",
    "cosine_bound",
    "cut",
    "fit_of_sums",
    "measure",
    "measure_cosine",
    "partition",
    "partition_bands",
    "quantile_edges",
    "report_of_bins",
    "scaling_law",
    "scaling_law_of_sums",
    "wilson",
]
