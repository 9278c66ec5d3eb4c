"""The pictures of the dashboard are taken of real runs; in CI those of the day stay in ``build/screenshots``.

The worlds are as small as they can be; ``python -m scripts.screenshots`` takes more pictures, of larger ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scripts.screenshots.__main__ import FOLDER, NAMES, take
from scripts.screenshots.camera import SIZES, THEMES, Camera
from scripts.screenshots.worlds import CHECKED
from simulation.datasets.mnist_images import FASHION_FOLDER as FASHION_MNIST
from tests.browser.conftest import violations
from tests.rotating import taking_turns

pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.timeout(600)]

SEEN = {
    "demo": {"demo", "demo-round", "secure", "secure-round", "runs", "fleet"},
    "simulated": {"simulated", "simulated-round"},
    "trouble": {"fallback", "datacenter", "standstill"},
}
TURNS = (("demo",), ("simulated",), ("trouble",))
"""Those of one day, of the next, and so on."""
FEWEST_COLOURS = 40
"""An empty page has fewer."""


def test_each_scene_has_its_day() -> None:
    assert sorted(scene for scenes in TURNS for scene in scenes) == sorted(NAMES) == sorted(SEEN)


@pytest.mark.parametrize("scenes", taking_turns(*TURNS), ids=" and ".join)
def test_scenes_are_seen_in_both_themes_at_both_sizes(chromium: Any, tmp_path: Path, scenes: tuple[str, ...]) -> None:
    if not FASHION_MNIST.is_dir():
        pytest.skip("Fashion-MNIST is not here: scripts/debian.sh dataset-fashion-mnist")
    camera = Camera(chromium, FOLDER, faults=violations)
    take(camera, tmp_path, [*scenes], CHECKED, every=False)
    seen = {name for scene in scenes for name in SEEN[scene]}
    wanted = {f"{name}-{size.name}-{theme}.png" for name in seen for size in SIZES for theme in THEMES}
    assert {file.name for file in camera.taken} == wanted
    for file in camera.taken:
        size = next(size for size in SIZES if f"-{size.name}-" in file.name)
        with Image.open(file) as picture:
            assert picture.size == (size.width, size.height)
            colours = picture.convert("RGB").getcolors(1 << 24)
            assert colours is not None
            assert len(colours) > FEWEST_COLOURS, f"{file.name} is empty"
