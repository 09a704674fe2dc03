"""Known vulnerabilities of what is installed: ``make audit``.

Asks PyPI's advisories through pip-audit. A vulnerability in one of our direct dependencies is an
error; one further down is reported, since only the package in between can fix it. An advisory
service that cannot be reached, or that knows none of the packages (a mirror without advisories), is an
error too: an audit that did not happen proves nothing. ``--allow-unaudited`` makes it a line, not an error.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

NOT_AUDITED = 3
"""the exit code if no package was audited; 1 means that a direct dependency is vulnerable"""
ROOT = Path(__file__).resolve().parents[1]


def direct_dependencies(pyproject: dict[str, Any]) -> set[str]:
    """Names of the packages that ``pyproject.toml`` asks for, including extras, as PyPI spells them."""
    project = pyproject["project"]
    wanted = [*project["dependencies"]]
    for extra in project.get("optional-dependencies", {}).values():
        wanted += extra
    return {canonical(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]) for line in wanted}


def canonical(name: str) -> str:
    """A distribution's name in PyPI's normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def assess(report: dict[str, Any], direct: set[str]) -> tuple[list[str], int]:
    """The lines to print and the exit code for a JSON report of pip-audit.

    Args:
        report: its ``dependencies`` have ``name`` and either ``version`` and ``vulns`` or
            ``skip_reason``.
        direct: names of the direct dependencies.
    """
    lines, code, asked, missed = [], 0, 0, []
    for found in report.get("dependencies", []):
        name = canonical(found["name"])
        if "skip_reason" in found:
            missed += [name] if name in direct else []
            continue
        asked += 1
        for vulnerability in found.get("vulns", []):
            kind = "DIRECT" if name in direct else "indirect"
            fixed = ", ".join(vulnerability.get("fix_versions", [])) or "no version yet"
            lines.append(
                f"{kind}: {name} {found['version']}: {vulnerability['id']}, fixed in {fixed}"
            )
            code = 1 if name in direct else code
    if asked == 0:
        lines.append("NOT AUDITED: the advisory service knows none of the packages (a mirror?).")
        code = NOT_AUDITED
    elif missed:
        lines.append(f"Not audited, unknown to the service: {', '.join(sorted(missed))}.")
    if asked and not code:
        lines.append(
            f"No known vulnerability in a direct dependency; {asked} packages were asked for."
        )
    return lines, code


def main() -> int:
    """Runs pip-audit over the packages of an environment and assesses its report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("site_packages", type=Path, help="folder of the installed packages")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for it")
    parser.add_argument(
        "--allow-unaudited", action="store_true", help="succeed where no advisory service answers"
    )
    chosen = parser.parse_args()
    lines, code = audit(chosen.site_packages, chosen.timeout)
    print("\n".join(lines))
    return 0 if chosen.allow_unaudited and code == NOT_AUDITED else code


def audit(site_packages: Path, timeout: float) -> tuple[list[str], int]:
    """The verdict of ``assess`` on the packages in a folder, reached in at most ``timeout`` seconds."""
    command = [sys.executable, "-m", "pip_audit", "--path", str(site_packages)]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        report = json.loads(answer.stdout)
    except subprocess.TimeoutExpired:
        return ["NOT AUDITED: the advisory service did not answer in time."], NOT_AUDITED
    except json.JSONDecodeError:
        reason = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        return [f"NOT AUDITED: the advisory service cannot be asked ({reason:.200})."], NOT_AUDITED
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return assess(report, direct_dependencies(pyproject))


if __name__ == "__main__":
    sys.exit(main())
