"""Is clipping fair? Rates by length with intervals, the LRE, the band from data, H, and the cosine guarantee."""

from fspo.fairness.calibrate import Calibration, PartitionBands, calibrate, partition_bands
from fspo.fairness.cosine import CosineBound, MeasuredCosine, cosine_bound, measure_cosine
from fspo.fairness.measure import Bin, FairnessReport, measure, wilson
from fspo.fairness.scaling import ScalingLaw, scaling_law

__all__ = [
    "Bin",
    "Calibration",
    "CosineBound",
    "FairnessReport",
    "MeasuredCosine",
    "PartitionBands",
    "ScalingLaw",
    "calibrate",
    "cosine_bound",
    "measure",
    "measure_cosine",
    "partition_bands",
    "scaling_law",
    "wilson",
]
