"""Hold memory outside of every limit: in memfd files, by vmsplice and splice, in locked pages, in pipes.

Stopped by: seccomp; the input is sealed; RLIMIT_MEMLOCK is 0; RLIMIT_NOFILE.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)

with contextlib.suppress(OSError):
    os.memfd_create("x")
    print("reached memfd")
for act in (lambda: os.write(0, b"x" * 2**20), lambda: os.ftruncate(0, 2**30)):
    with contextlib.suppress(OSError):
        act()
        print("reached the input's memory")
read, write = os.pipe()
memory = mmap.mmap(-1, 2**21)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
vector = (ctypes.c_size_t * 2)(address, 4096)
if libc.vmsplice(write, ctypes.byref(vector), 1, 0) > 0:
    print("reached vmsplice")
with open(os.__file__, "rb") as file:
    if libc.splice(file.fileno(), None, write, None, 4096, 0) > 0:
        print("reached splice")
if libc.mlock(ctypes.c_void_p(address), 2**21) == 0:
    print("reached mlock")
with contextlib.suppress(OSError):
    fcntl.fcntl(write, 1031, 2**20)
    print("reached a larger pipe")
total = 0
with contextlib.suppress(OSError):
    while True:
        write = os.pipe()[1]
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                total += os.write(write, b"x" * 65536)
if total > 2**26:
    print("reached", total)
