"""Objectives that clip or weigh the ratio of a whole response."""
