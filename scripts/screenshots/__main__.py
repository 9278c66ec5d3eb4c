"""``python -m scripts.screenshots``: pictures of the dashboard in build/screenshots, in some three minutes.

``python -m scripts.screenshots --readme demo`` also writes docs/images/dashboard.png, the picture of the README.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from PIL import Image

from simulation.demo.setting import Setting
from simulation.fleet.habits import FleetHabits
from simulation.fleet.split import Split

from . import scenes
from .camera import Camera, chromium

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "screenshots"
README = ROOT / "docs" / "images" / "dashboard.png"
COLOURS = 256


def small() -> Setting:
    """A demo of a minute."""
    split = Split(data=scenes.DATA, devices=110, alpha=0.5, size_sigma=0.5)
    port = scenes.free_port()
    return Setting(
        split=split, habits=FleetHabits(), select=80, goal=64, rounds=6, secure_rounds=1, epochs=2, port=port
    )


def take(camera: Camera, place: Path, names: list[str]) -> None:
    """Play these scenes in the folder ``place``."""
    for name in names:
        folder = place / name
        folder.mkdir()
        if name == "demo":
            scenes.demo(camera, folder, small(), after=4)
        elif name == "simulated":
            scenes.simulated(camera, folder)
        else:
            scenes.trouble(camera, folder)


NAMES = ("demo", "simulated", "trouble")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(prog="python -m scripts.screenshots", description=__doc__)
    parser.add_argument("scene", nargs="*", metavar="SCENE", help=f"of {', '.join(NAMES)}; all unless told")
    parser.add_argument("--readme", action="store_true", help="also write the picture of the README")
    asked = parser.parse_args()
    if unknown := set(asked.scene) - set(NAMES):
        parser.error(f"there is no scene {', '.join(sorted(unknown))}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        camera = Camera(browser, FOLDER)
        take(camera, Path(place), asked.scene or list(NAMES))
    if asked.readme:
        with Image.open(FOLDER / "demo-desktop-dark.png") as picture:
            picture.convert("RGB").quantize(COLOURS).save(README, optimize=True)
    print(f"{len(camera.taken)} pictures are in {FOLDER}, after {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
