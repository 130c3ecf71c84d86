"""The same program gives the same bytes, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = """
from tests.programs import seeded
from streamgraph.plan import plan
from streamgraph.simulate import simulate
from streamgraph.render import FORMATS, render
for seed in range(40):
    for order in ("declared", "auto"):
        schedule = plan(seeded(seed, tasks=16), order=order)
        print(schedule)
        print([schedule.explain(name).lines for name in list(schedule.lane_of)[:3]])
        print(simulate(schedule).makespan)
    for format in FORMATS:
        print(render(schedule, format))
"""


def test_plans_explanations_and_pictures_do_not_depend_on_the_hash_seed() -> None:
    outputs = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, env=environment, cwd=ROOT)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 10_000
