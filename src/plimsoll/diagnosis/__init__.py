"""What of plimsoll is installed and works on this machine, and what would make the rest work."""

from plimsoll.diagnosis.diagnose import build_libraries, doctor
from plimsoll.diagnosis.parts import Ability, Installed
from plimsoll.diagnosis.results import Diagnosis

__all__ = ["Ability", "Diagnosis", "Installed", "build_libraries", "doctor"]
