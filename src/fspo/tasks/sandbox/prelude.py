"""What runs before a program, in its process: the text of this file is given to `python -c` inside the sandbox.

Its arguments are the user id to change to (or nothing), the limits as NAME=VALUE, and last the program.
"""

from types import CodeType


def begin() -> CodeType:
    """Give up the rights of root, set the limits, write `started`, and return the program; leaves no name behind."""
    import os
    import resource
    import sys

    _, user, *limits, program = sys.argv
    del sys.argv[1:], globals()["begin"], globals()["CodeType"]
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if the machine runs out of memory, this process is the one to end
    except OSError:
        pass
    if user:
        os.setgroups([])
        os.setresgid(int(user), int(user), int(user))
        os.setresuid(int(user), int(user), int(user))
    for limit in limits:
        name, _, value = limit.partition("=")
        kind, hard = getattr(resource, name), resource.getrlimit(getattr(resource, name))[1]
        lowest = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(kind, (lowest, lowest))
    os.write(2, b"started")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return compile(program, "<program>", "exec", dont_inherit=True)


if __name__ == "__main__":
    exec(begin())
