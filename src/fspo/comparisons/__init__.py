"""Methods compared over many seeds: the same data, budget, start and tuning for each."""
