"""Methods beside each other: the same data, budget, start and tuning for each, over many seeds."""
