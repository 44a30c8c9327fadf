"""What a program under test sees of the file system: the interpreter and its libraries, at their own paths."""

import os
import site
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store", "/gnu/store")
_DATA = ("/etc/ld.so.cache", "/usr/share/zoneinfo")


@dataclass(frozen=True)
class FileTree:
    """Real paths to mount read-only at the same place, and symbolic links (path, target) that lead to them."""

    executable: str
    mounts: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@cache
def python_tree() -> FileTree:
    """The tree of this interpreter and of the packages that it can import."""
    prefixes = {sys.base_prefix, sys.base_exec_prefix}
    paths = {
        sys.executable,
        os.path.realpath(sys.executable),
        *(os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64")),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")),
        *site.getsitepackages(),
        *_LIBRARIES,
        *_DATA,
    }
    if sys.prefix != sys.base_prefix:
        paths.add(os.path.join(sys.prefix, "pyvenv.cfg"))
    return _tree(sys.executable, {os.path.abspath(path) for path in paths if os.path.exists(path)})


def _tree(executable: str, paths: set[str]) -> FileTree:
    """Mount each path where it really is, and link to it where it is found through a symbolic link."""
    mounts: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths}):
        if not _within(path, mounts):
            mounts.append(path)
    links: list[tuple[str, str]] = []
    for path in sorted(paths):
        if os.path.realpath(path) != path and not _within(path, [*mounts, *(link for link, _ in links)]):
            links.append((path, os.path.realpath(path)))
    return FileTree(executable, tuple(mounts), tuple(links))


def _within(path: str, folders: list[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
