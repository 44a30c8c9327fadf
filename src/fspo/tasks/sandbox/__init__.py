"""Runs untrusted programs: `launch` starts `child`, the supervisor, which builds the `walls` around each program."""
