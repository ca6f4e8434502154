"""kill -9 fifty times under load: nothing that was acknowledged is lost, nothing is counted twice."""

import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
from service_crash import crash_run


@pytest.mark.slow
def test_fifty_kills_lose_nothing(tmp_path):
    result = crash_run(tmp_path, kills=50, seconds=0.8)
    assert result["posts"] > 500
    assert result["repeated"] > 0  # some answers were lost on the way, and their posts were not counted again
