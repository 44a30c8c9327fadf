"""The ways to start the supervisor of untrusted programs: in bubblewrap, in our own namespaces, or with limits only."""

import os
import secrets
import shutil
import sys
from pathlib import Path

from fspo.tasks.sandbox.file_tree import DEVICES, FileTree

ISOLATED: tuple[str, ...] = ("bubblewrap", "namespaces")
_SUPERVISOR = "import sys; sys.path.append(sys.argv[1]); from sandbox.child import main; main()"
_NOBODY = "65534"
DEVICE_LINKS = (("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "fd/0"), ("/dev/stdout", "fd/1"), ("/dev/stderr", "fd/2"))


def supervisor(executable: str) -> list[str]:
    """The command of the supervisor, which imports this folder as the package `sandbox`, without the one above it."""
    return [executable, "-I", "-S", "-c", _SUPERVISOR, str(Path(__file__).resolve().parents[1])]


def command(backend: str, tree: FileTree, uid: int | None) -> list[str]:
    """The command that reads a job; raises `RuntimeError` if the back end is not installed."""
    if backend != "bubblewrap":
        return supervisor(sys.executable)
    program = shutil.which("bwrap")
    if program is None:
        raise RuntimeError("not installed")
    user = ["--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY] if uid is None else []
    spaces = [f"--unshare-{name}" for name in ("pid", "net", "ipc", "uts", "cgroup-try")]
    # The supervisor needs its capabilities to give each program a folder of its own; programs have none.
    own = ["--cap-add", "ALL", "--as-pid-1", "--die-with-parent", "--hostname", "sandbox"]
    mounts = (*tree.mounts, str(Path(__file__).resolve().parent))
    links = (*tree.links, *DEVICE_LINKS)
    parents = {parent for path in (*mounts, *DEVICES, *dict(links)) for parent in Path(path).parents}
    files: list[str] = []
    for folder in sorted(parents - {Path("/")}):  # bubblewrap itself would make them readable to their owner only
        files += ["--dir", str(folder)]
    for path in mounts:
        files += ["--ro-bind", path, path]
    for path in DEVICES:
        files += ["--dev-bind", path, path]
    for path, target in links:
        files += ["--symlink", target, path]
    files += ["--proc", "/proc", "--dir", "/box", "--remount-ro", "/", "--chdir", "/"]
    return [program, *user, *spaces, *own, *files, "--", *supervisor(tree.executable)]


def spare_user() -> int | None:
    """A random user id for root to change to; None if this process is not root or has no such id."""
    if os.getuid() != 0:
        return None
    highest = 0
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        highest = max(highest, first + count - 1)
    if highest < 2000:
        return None
    return min(10**9 + 2**29, highest) - secrets.randbelow(min(2**29, highest // 2))
