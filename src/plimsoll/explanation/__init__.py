"""Why a program's GPU memory was used as it was, and what would help."""

from plimsoll.explanation.explain import explain
from plimsoll.explanation.explanation import Explanation
from plimsoll.explanation.leak_watch import LeakWarning, LeakWatch
from plimsoll.explanation.oom_hook import OomHook, explain_oom
from plimsoll.explanation.parts import Advice, Leak, OutOfMemory

__all__ = [
    "Advice",
    "Explanation",
    "Leak",
    "LeakWarning",
    "LeakWatch",
    "OomHook",
    "OutOfMemory",
    "explain",
    "explain_oom",
]
