"""An exported file in a process of its own, which knows nothing of the run: `python -m` this file.

It answers on its standard output what comes in on its standard input, pickled, until that ends.
"""

import os
import pickle
import sys
from functools import partial

from project.export.exported import open_exported
from project.export.latency import measure


def main(path: str, threads: str) -> None:
    """Answer each ``(images, seconds)``: with outputs, or with times if there are seconds."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    run = open_exported(path, int(threads)).run
    while True:
        try:
            images, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer = measure(partial(run, images), seconds) if seconds else run(images)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
