"""Makes the zoo importable: its parts by `from zoo.parts import ...`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
