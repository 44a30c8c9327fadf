"""Start threads without end.

Wall: RLIMIT_NPROC.
"""

import json
import threading
import time

scene = json.loads(input())

for count in range(1000):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if count > 64:
        print("reached")
