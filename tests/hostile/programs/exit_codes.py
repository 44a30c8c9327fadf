"""End in odd ways: by a signal, by _exit, by a crash of the interpreter.

Wall: the outcome is an error of the program.
"""

import ctypes
import json
import os
import signal

scene = json.loads(input())

if scene["again"]:
    ctypes.string_at(0)
os.kill(os.getpid(), signal.SIGSEGV)
