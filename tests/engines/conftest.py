"""The model that the tests of TRL train."""

from __future__ import annotations

from pathlib import Path

import pytest

from fspo.model import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for part in tiny.build("1x32"):
        part.save_pretrained(folder)
    return folder
