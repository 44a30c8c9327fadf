"""Runs untrusted programs: `launch` starts the sandbox from this process, `child` is the script that runs inside it."""
