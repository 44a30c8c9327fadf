"""Objectives that clip or weigh the ratio of each token."""
