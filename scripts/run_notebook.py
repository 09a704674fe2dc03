"""Runs the code of a notebook from top to bottom, in a fresh process and without Jupyter.

python scripts/run_notebook.py examples/tour.ipynb
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def code_of(notebook: Path) -> str:
    """A notebook's code cells as one script; an IPython magic is a syntax error in it, on purpose."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return "\n\n".join(sources) + "\n"


def main() -> int:
    """Runs each notebook that is named; returns the exit code of the first that fails."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / f"{Path(name).stem}.py"
            script.write_text(code_of(Path(name)), encoding="utf-8")
            code = subprocess.run([sys.executable, str(script)]).returncode
        if code:
            print(f"{name} failed", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
