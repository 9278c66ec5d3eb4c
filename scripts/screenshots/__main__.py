"""``python -m scripts.screenshots``: pictures of the dashboard in build/screenshots, in some three minutes.

``python -m scripts.screenshots --readme`` plays the demo in its own size instead, until its picture is taken, and
writes docs/images/dashboard.png, the picture of the README.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from PIL import Image

from . import scenes
from .camera import Camera, chromium
from .worlds import DEMO, SHOWN, World

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "screenshots"
README = ROOT / "docs" / "images" / "dashboard.png"
COLOURS = 256
NAMES = ("demo", "simulated", "trouble")


def take(camera: Camera, place: Path, names: list[str], world: World, *, every: bool = True) -> None:
    """Play these scenes in the folder ``place``. ``every``: as ``scenes.demo`` has it."""
    for name in names:
        folder = place / name
        folder.mkdir()
        if name == "demo":
            scenes.demo(camera, folder, world.demo(scenes.free_port()), world.after, every=every)
        elif name == "simulated":
            scenes.simulated(camera, folder, world)
        else:
            scenes.trouble(camera, folder, world)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(prog="python -m scripts.screenshots", description=__doc__)
    parser.add_argument("scene", nargs="*", metavar="SCENE", help=f"of {', '.join(NAMES)}; all unless told")
    parser.add_argument("--readme", action="store_true", help="only the demo, in its own size; the README's picture")
    asked = parser.parse_args()
    if unknown := set(asked.scene) - set(NAMES):
        parser.error(f"there is no scene {', '.join(sorted(unknown))}")
    if asked.readme and set(asked.scene) - {"demo"}:
        parser.error("--readme is of the demo: give no other scene")
    names = ["demo"] if asked.readme else asked.scene or list(NAMES)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        camera = Camera(browser, FOLDER)
        take(camera, Path(place), names, DEMO if asked.readme else SHOWN)
    if asked.readme:
        with Image.open(FOLDER / "demo-desktop-dark.png") as picture:
            picture.convert("RGB").quantize(COLOURS).save(README, optimize=True)
    print(f"{len(camera.taken)} pictures are in {FOLDER}, after {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
