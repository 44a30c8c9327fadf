"""Public data sets, isolation of programs, and checks that no process outlives a test."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def shared() -> Path:
    """The folder of public question-answer sets, which may be next to the repository."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("FSPO_SHARED", root.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("the shared data sets are not on this machine")
    return folder


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """The processes started since the test began: an earlier test may have started Python's resource tracker."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [child for child in psutil.Process().children(recursive=True) if child not in before]


@pytest.fixture
def no_process_left(children: Callable[[], list[psutil.Process]]) -> Iterator[None]:
    """After the test, no process that it started is alive, neither children nor processes that were detached."""
    marker = f"fspo-test-{os.getpid()}-{id(object())}"
    os.environ["FSPO_TEST_MARKER"] = marker
    yield
    del os.environ["FSPO_TEST_MARKER"]
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("FSPO_TEST_MARKER") == marker:
                left.append(process)
    _, alive = psutil.wait_procs(left, timeout=60)  # those that were killed may not be gone yet
    assert not alive
    assert not children()


@pytest.fixture(scope="session")
def isolated() -> None:
    """Skip where the machine, as a plain container, does not allow isolation."""
    from fspo.tasks.sandbox import run_python

    try:
        run_python("", [""])
    except RuntimeError as refused:
        if os.environ.get("CI"):  # there programs can be isolated: a refusal is a failure
            raise
        pytest.skip(str(refused))
