"""What commands say of their memory before they begin."""

import subprocess
import sys

from edgewise.measure.memory import peak, projected_peak, resident

MB = 2**20


def test_the_most_is_kept_when_memory_is_given_back():
    """In a process of its own: this one may have held more before."""
    code = (
        "from edgewise.measure.memory import peak, projected_peak, resident\n"
        "import numpy\n"
        "before = peak()\n"
        "much = numpy.ones(300 << 17)\n"  # 300 MB
        "held = resident()\n"
        "del much\n"
        "print(before, held, resident(), peak(), projected_peak(0), projected_peak(900 << 20))\n"
    )
    actual = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, held, after, highest, soon, later = map(int, actual.stdout.split())
    assert held > before + 250 * MB and after < held - 250 * MB
    assert highest >= held - MB and soon == highest
    assert abs(later - (after + 900 * MB)) < 20 * MB


def test_what_is_needed_comes_on_top_of_what_is_held():
    assert 0 < resident() <= peak() + MB
    assert projected_peak(10**15) > 10**15
