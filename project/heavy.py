"""Importing torch and Lightning: seconds, and without this a fifth more."""

import gc
import sys
from importlib import import_module

from project import quiet


def import_lightning() -> None:
    """Import them, with nothing that nobody needs to read, and without a search for garbage.

    A million objects come and stay, and Python looks through all of them again and again for ones
    that only hold one another. In a process of our own they are left out of all later searches.
    """
    quiet.prepare()
    searches, is_ours = gc.isenabled(), "torch" not in sys.modules
    gc.disable()
    try:
        import_module("lightning.pytorch.cli")
    finally:
        if is_ours:  # else the objects of a program that calls us are among them
            gc.freeze()
        if searches:
            gc.enable()
