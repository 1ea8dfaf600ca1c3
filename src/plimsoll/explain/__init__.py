"""Why a program's GPU memory was used as it was, and what would help."""

from plimsoll.explain.explain import explain
from plimsoll.explain.hook import OomHook, explain_oom
from plimsoll.explain.leak_watch import LeakWarning, LeakWatch
from plimsoll.explain.result import Advice, Explanation, Leak, OutOfMemory

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
