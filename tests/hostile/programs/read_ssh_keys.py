"""List the home folders and their .ssh.

Wall: the root holds only the interpreter and its libraries.
"""

import json
import os

scene = json.loads(input())

for home in ("/root", "/home", scene["home"]):
    for folder, _, names in os.walk(home):
        if ".ssh" in folder or ".aws" in folder or ".bash_history" in names:
            print("reached", folder)
