"""What isolates a program: namespaces, a root of its own, no privileges, limits. Standard library only.

`supervisor` imports this outside the package, in an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would add 3 ms to the scoring of every answer
    from typing import TypedDict

    class Job(TypedDict):
        """A program, its inputs, the limits of each run, and how it is isolated."""

        code: str
        inputs: list[str]
        stop_early: bool
        seconds: float
        answer_seconds: float
        memory_mb: int
        processes: int
        file_mb: int
        output_kb: int
        backend: str  # namespaces, bubblewrap or limits
        uid: int | None  # the user that root becomes to run a program; None: a new user namespace
        executable: str
        mounts: list[str]
        devices: list[str]
        links: list[tuple[str, str]]
        filter: str  # the seccomp program in hexadecimal digits; empty: none


libc = ctypes.CDLL(None, use_errno=True)

NAMESPACES = 0x20000 | 0x2000000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount cgroup uts ipc pid net
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 8, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
CAP_DAC_READ_SEARCH = 2
FOLDER = "/box"  # the working folder of a program, empty at each start; no interpreter is installed there
NOBODY = 65534  # the program's user id in a user namespace
OLD = "/.old"


def checked(result: int, what: str) -> None:
    """Raise the error of a C function whose result is not 0."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def enter_namespaces(own_user: bool) -> None:
    """New namespaces of every kind; for an ordinary user they belong to a new user namespace."""
    uid, gid = os.getuid(), os.getgid()
    checked(libc.unshare(NAMESPACES | (CLONE_NEWUSER if own_user else 0)), "unshare")
    if own_user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    libc.sethostname(b"sandbox", 7)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), flags, options.encode())
    checked(libc.mount(*arguments), f"mount {kind or source} on {target}")


def build_root(job: Job) -> None:
    """Leave the host's file system for an empty one that holds the mounts and links of the job, all read-only."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    base = next(filter(os.path.isdir, ("/tmp", "/usr")))  # any folder: it is visible again under OLD
    mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=256k,mode=755")
    os.mkdir(base + OLD)
    pivot = PIVOT_ROOT[os.uname().machine]
    checked(libc.syscall(pivot, base.encode(), (base + OLD).encode()), "pivot_root")
    os.chdir("/")
    os.umask(0o022)
    for path in (*job["mounts"], *job["devices"]):
        if os.path.isdir(OLD + path):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(OLD + path, path, "", MS_BIND | MS_REC)
        read_only(path, MS_NOEXEC if path in job["devices"] else MS_NODEV)
    for path, target in job["links"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    os.mkdir("/proc")
    os.mkdir(FOLDER)
    fresh_proc()  # before the host's is gone: the kernel wants to see one
    checked(libc.umount2(OLD.encode(), MNT_DETACH), "umount")
    os.rmdir(OLD)
    read_only("/", MS_NODEV, recursive=False)


def read_only(path: str, flags: int, recursive: bool = True) -> None:
    """The attributes of `mount_setattr` have the values of the flags of `mount`."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID | flags, 0, 0, 0)
    what = (MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE if recursive else 0, ctypes.byref(attributes), 32)
    checked(libc.syscall(*what), f"mount_setattr {path}")


def fresh_proc(flags: int = 0) -> None:
    """Mount the /proc of this process namespace without what is not the program's own; without the right to, none.

    With MS_REMOUNT, change the one that bubblewrap has mounted.
    """
    flags |= MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    for options in ("hidepid=2,subset=pid", "hidepid=2"):
        with contextlib.suppress(OSError):
            mount("proc", "/proc", "proc", flags, options)
            return


def harden_supervisor() -> None:
    """No program may trace, read or signal this process; it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 receives only the signals that it handles
    end_with_parent()
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")


def end_with_parent() -> None:
    """Be killed when the parent ends; a change of user undoes this."""
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "pdeathsig")


def private_folder(size_mb: int, owner: int) -> None:
    """An empty file system in memory, in a mount namespace of the program: it is gone with its last process."""
    checked(libc.unshare(CLONE_NEWNS), "unshare")
    options = f"size={size_mb}m,nr_inodes=1000,mode=700,uid={owner},gid={owner}"
    mount("tmpfs", FOLDER, "tmpfs", MS_NOSUID | MS_NODEV, options)
    os.chdir(FOLDER)


def host_folder(folder: str, owner: int | None) -> None:
    """An empty folder of the host, where there is no mount namespace."""
    os.mkdir(folder, 0o700)
    if owner is not None:
        os.chown(folder, owner, owner)
    os.chdir(folder)


def limit(job: Job) -> None:
    """The resource limits of one process; a limit of the caller that is lower stays."""
    cpu = max(1, int(job["seconds"] + 0.999))
    # In a user namespace the supervisor's own processes count too: process 1, and its parent if that is ours.
    own = 0 if job["uid"] is not None else {"namespaces": 2, "bubblewrap": 1}.get(job["backend"], 0)
    for name, soft, hard in (
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_CORE, 1, 1),  # 0 would still start a core-dump handler of the host
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_FSIZE, job["file_mb"] * 2**20, job["file_mb"] * 2**20),
        (resource.RLIMIT_AS, job["memory_mb"] * 2**20, job["memory_mb"] * 2**20),
        (resource.RLIMIT_NPROC, job["processes"] + own, job["processes"] + own),
        # These count per user, and so would take from the user's other processes.
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_SIGPENDING, 64, 64),
    ):
        highest = resource.getrlimit(name)[1]
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(name, (soft, hard))


def drop_privileges(uid: int | None, executable: str = "") -> None:
    """No capabilities now or later; root becomes the user `uid`.

    If that user cannot start `executable`, the capability to read any file stays: this is for programs that see the
    host's files anyway.
    """
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    libc.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)
    for capability in range(64):
        if not executable or capability != CAP_DAC_READ_SEARCH:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    kept = 0
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        if executable and not (os.access(executable, os.X_OK) and os.access(os.__file__, os.R_OK)):
            kept = 1 << CAP_DAC_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)
    checked(libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")
    if kept:
        checked(libc.prctl(PR_CAP_AMBIENT, 2, CAP_DAC_READ_SEARCH, 0, 0), "ambient capability")
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter for this process and all that it starts."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    filters = Program(len(program) // 8, program)
    checked(libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filters), 0, 0), "seccomp")
