from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving.__main__ import FAMILIES, refuse_clashes


def test_the_environment_of_the_tests_has_one_of_each() -> None:
    refuse_clashes()


@pytest.mark.parametrize("family", FAMILIES)
def test_two_builds_of_a_family_end_the_start_with_one_line_that_names_them(family: str, tmp_path: Path) -> None:
    for build in (f"{family}-first", f"{family}-second"):
        (tmp_path / f"{build.replace('-', '_')}-1.0.dist-info").mkdir()
        (tmp_path / f"{build.replace('-', '_')}-1.0.dist-info" / "METADATA").write_text(
            f"Name: {build}\nVersion: 1.0\n"
        )
    (tmp_path / f"{family}.py").write_text("raise ImportError('two builds, half overwritten')")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import serving.__main__ as m; sys.exit(m.main())"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert f"{family}-first" in ended.stderr and f"{family}-second" in ended.stderr
    assert "make clean setup" in ended.stderr
    assert ended.stderr.count("\n") == 1
