"""Makes data for the tutorial: 13 measurements of wines of three growers, for four cellars, and a test set."""

from __future__ import annotations

import numpy as np

chance = np.random.default_rng(0)
centres = chance.normal(size=(3, 13))
for name, count in {"cellar1": 100, "cellar2": 100, "cellar3": 100, "cellar4": 100, "test": 500}.items():
    y = chance.integers(0, 3, count)
    x = (centres[y] + chance.normal(size=(count, 13))).astype(np.float32)
    np.savez(f"{name}.npz", x=x, y=y)
