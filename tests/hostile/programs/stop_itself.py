"""Stop itself with SIGSTOP.

Wall: the time limit is the supervisor's.
"""

import json
import os
import signal

scene = json.loads(input())

os.kill(os.getpid(), signal.SIGSTOP)
