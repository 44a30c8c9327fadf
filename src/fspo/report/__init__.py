"""Pages about runs: the report, written after a run or shown during it, and the band explorer."""
