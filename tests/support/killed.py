"""Run one scene's act in this process and die by SIGKILL at a chosen effect.

Usage: python -m support.killed HOME SCENE EFFECT WHEN
"""

import os
import signal
import sys

from support.faulty_catalog import ALL_EFFECTS
from support.scenes import SCENES, open_faulty

from lakeops import Settings
from lakeops.testing import Faults


def main() -> None:
    home, name, effect, when = sys.argv[1:]
    faults = Faults()
    faults.hook(
        *ALL_EFFECTS,
        at=int(effect),
        when="before" if when == "before" else "after",
        action=lambda _: os.kill(os.getpid(), signal.SIGKILL),
    )
    settings = Settings.load(home=home, fsync=False, committer="tester")
    scene = SCENES[name]
    scene.act(open_faulty(settings, faults, clock=scene.clock()).repository("repo"))


if __name__ == "__main__":
    main()
