"""The panels of the page: each takes runs and gives plots, or one sentence about what is lacking."""
