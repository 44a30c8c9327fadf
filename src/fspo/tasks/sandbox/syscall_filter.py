"""The system calls that a program under test may not make, as a seccomp filter (classic BPF).

The filter refuses what reaches another process or the kernel's inner parts, and what takes memory that no limit counts.
Every call that is newer than the list is refused as unknown, so that a new kernel does not open a new way out.
"""

import errno
import platform
import re
import struct

# machine -> the number of its instruction set in `struct seccomp_data`, and the index of its column in the tables
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NEWEST = 450  # the last system call that is not refused as unknown

# name, number on x86_64 and on aarch64 (- where the call does not exist)
_DENIED = """
# other processes
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, pidfd_getfd 438 438,
process_madvise 440 440, process_mrelease 448 448, setpriority 141 140, ioprio_set 251 30,
sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274, migrate_pages 256 238,
move_pages 279 239
# mounts and namespaces
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, move_mount 429 429,
fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, unshare 272 97,
setns 308 268, name_to_handle_at 303 264, open_by_handle_at 304 265
# sockets
socket 41 198, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242
# memory that no limit counts, also that of files and pipes, which others share
shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, msgget 68 186, msgsnd 69 189, mq_open 240 180,
memfd_create 319 279, memfd_secret 447 447, vmsplice 278 75, splice 275 76, tee 276 77
# parts of the kernel that a program does not need
bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426,
io_uring_register 427 427, keyctl 250 219, add_key 248 217, request_key 249 218, fanotify_init 300 262,
inotify_init 253 -, inotify_init1 294 26, personality 135 92, modify_ldt 154 -, uselib 134 -,
lookup_dcookie 212 18
# administration of the machine
kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273, delete_module 176 106,
swapon 167 224, swapoff 168 225, reboot 169 142, sethostname 170 161, setdomainname 171 162, iopl 172 -,
ioperm 173 -, acct 163 89, settimeofday 164 170, clock_settime 227 112, clock_adjtime 305 266,
adjtimex 159 171, quotactl 179 60, quotactl_fd 443 443, syslog 103 116, vhangup 153 58, sync 162 81,
syncfs 306 267
# locks on files of the host, which need no right to write
flock 73 32
"""
# The C library starts threads by `clone` where `clone3`, whose flags a filter cannot read, is unknown.
_UNKNOWN = "clone3 435 435"
# Calls that are refused by an argument: their number on x86_64 and on aarch64, the index of the argument, its values,
# and whether only these values are allowed (True) or just these are refused (False).
_BY_ARGUMENT: tuple[tuple[tuple[int, int], int, tuple[int, ...], bool], ...] = (
    # RLIMIT_CORE, whose value 1 keeps a crash from starting the host's core-dump handler (0 does not)
    ((160, 164), 0, (4,), False),  # setrlimit
    ((302, 261), 1, (4,), False),  # prlimit64
    ((302, 261), 0, (0,), True),  # prlimit64: the process itself
    ((203, 122), 0, (0,), True),  # sched_setaffinity: the process itself
    ((53, 199), 0, (1,), True),  # socketpair: sockets without an address
    # Leases and notifications on files that others open, and larger pipes, which count against the user's limit
    ((72, 25), 1, (1024, 1026, 1031), False),  # fcntl: F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ
)
_CLONE = (56, 220)
_NAMESPACES = 0x7E020000  # the flags of `clone` that make namespaces

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in `struct seccomp_data`
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def seccomp_program(machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`; raises `RuntimeError` for a machine without a list of calls."""
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise RuntimeError(f"there is no system call filter for {machine!r}, only for {' and '.join(_MACHINES)}")
    architecture, column = _MACHINES[machine]
    denied, unknown = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _NEWEST + 1),
        (_RETURN, 0, 0, unknown),
    ]
    for table, verdict in ((_DENIED, denied), (_UNKNOWN, unknown)):
        for call in re.findall(r"\w+ (\d+|-) (\d+|-)", re.sub("#.*", "", table)):
            if call[column] != "-":
                program += [(_EQUAL, 0, 1, int(call[column])), (_RETURN, 0, 0, verdict)]
    for columns, index, values, only in _BY_ARGUMENT:
        tests = [(_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * index)]
        for value in values:
            tests += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW if only else denied)]
        tests.append((_RETURN, 0, 0, denied) if only else (_LOAD, 0, 0, _NUMBER))
        program += [(_EQUAL, 0, len(tests), columns[column]), *tests]
    program += [
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NAMESPACES),
        (_RETURN, 0, 0, denied),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
