"""Runs untrusted programs: `launch` starts `supervisor`, which applies `isolation` to each program."""
