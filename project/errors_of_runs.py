"""What torch and Lightning say about gradients, processes and files, and what it means."""

import re

from project.explain import Answer, Classic, Scene

Found = re.Match[str]
RUNTIME = ("RuntimeError",)


def _in_place(found: Found, scene: Scene) -> Answer:
    shape = re.search(r"\[torch\.\S+ \[([\d, ]*)\]\]", scene.message)
    # A view (AsStrided, View, ...) is not what the user has written.
    maker = re.search(
        r"which is output \d+ of (?!AsStrided|\w*View)(\w+?)(?:Backward)?\d*,", scene.message
    )
    what = f" of shape ({shape[1]})" if shape else ""
    what += f", made by {maker[1]}," if maker else ""
    return Answer(
        f"A tensor{what} was changed in place, but its gradient needs the value of before.",
        "x += …, x[...] = …, relu(inplace=True) or a trailing underscore (add_, clamp_) on an "
        "activation; or weights changed between forward and backward.",
        "write x = x + …; --trainer.detect_anomaly true shows the forward line.",
    )


def _pickle(found: Found, scene: Scene) -> Answer | None:
    what = next(part for part in found.groups() if part)
    if scene.passed("multiprocessing/"):
        return Answer(
            f"A worker of the data loader is a new process, and {what} cannot be sent to it.",
            "a lambda, a function inside a function or an open file in the data set, in a "
            "transform or collate_fn; macOS, Windows and Python 3.14 do not fork.",
            "make it a function or class at the top of a file, open files in __getitem__; to go on "
            "at once: --data.num_workers 0.",
        )
    if scene.passed("torch/serialization.py"):
        return Answer(
            f"The checkpoint cannot hold {what}.",
            "a lambda or an open file among the hyperparameters, or in a state_dict.",
            "leave it out: save_hyperparameters(ignore=[…]).",
        )
    return None


def _unused(found: Found, scene: Scene) -> Answer:
    # torch names them, but by number, and Lightning replaces its message.
    named = [pair for task in scene.modules()[-1:] for pair in task.named_parameters()]
    trained = {name: p.grad for name, p in named if p.requires_grad}
    lost = [name for name, gradient in trained.items() if gradient is None]
    if len(lost) == len(trained):  # set to zero since
        lost = []
    which = f": {', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}" if lost else ""
    return Answer(
        f"Some parameters got no gradient{which}; DDP waits for all of them.",
        "a layer that forward does not use, or uses for some batches only.",
        "remove or freeze it, or --trainer.strategy ddp_find_unused_parameters_true (slower).",
    )


def _collective(found: Found, scene: Scene) -> Answer:
    operation = re.search(r"OpType=(\w+)", scene.message)
    limit = re.search(
        r"Timeout\(ms\)=(\d+)|(?:wait timeout after|Timed out waiting) (\d+) ?ms", scene.message
    )
    waited = f" for {int(limit[1] or limit[2]) // 1000} s" if limit else ""
    return Answer(
        f"This process waited{waited} in {operation[1] if operation else 'a collective'} for the "
        "others, which did not come.",
        "one of them has failed or is still loading, has fewer batches, or logs with sync_dist or "
        "saves under an `if rank == 0`.",
        "look for the first error in the other processes' output; all must take the same calls.",
    )


def _state(found: Found, scene: Scene) -> Answer:
    missing = re.findall(r'"([^"]+)"', _part(scene.message, "Missing key(s) in state_dict: "))
    extra = re.findall(r'"([^"]+)"', _part(scene.message, "Unexpected key(s) in state_dict: "))
    for prefix, by in (("_orig_mod.", "torch.compile"), ("module.", "DataParallel or DDP")):
        if extra and all(prefix in key for key in extra) and not any(prefix in k for k in missing):
            return Answer(
                f"Names in the file have {prefix!r} in them, e.g. {extra[0]}; those of {found[1]} "
                "have not.",
                f"the weights were saved from a network wrapped by {by}.",
                f"take {prefix!r} out of every name before load_state_dict: "
                f"name.replace({prefix!r}, '').",
            )
    sizes = re.findall(
        r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([\d, ]*)\]\).*?"
        r"torch\.Size\(\[([\d, ]*)\]\)",
        scene.message,
    )
    if sizes:
        name, had, has = sizes[0]
        return Answer(
            f"{name} is ({had}) in the file and ({has}) in this {found[1]}; {len(sizes)} differ.",
            "another number of classes or channels, or another width, than when it was saved.",
            "build the network as it was, or leave these out of the file's dictionary and load "
            "with strict=False.",
        )
    words = [f"{len(missing)} names are not in the file" + _example(missing)]
    words.append(f"{len(extra)} of the file are not in this {found[1]}" + _example(extra))
    return Answer(
        f"{', '.join(words)}.",
        "weights of another network, or a prefix: names of a task begin with its attribute, e.g. "
        "`net.`.",
        "compare the names; load into the part they belong to, or add or cut the prefix.",
    )


def _example(keys: list[str]) -> str:
    return f" (e.g. {keys[0]})" if keys else ""


def _part(message: str, after: str) -> str:
    return message.split(after, 1)[1].split("\n")[0] if after in message else ""


def _refused(found: Found, scene: Scene) -> Answer | None:
    name = re.search(r"GLOBAL ([\w.]+)", scene.message)
    if name is None:  # no file of torch's
        return None
    return Answer(
        f"The file holds {name[1]}, and loading that could run foreign code: refused.",
        "a whole network or other objects were saved in place of a state_dict, or the file is old.",
        "save state_dict() only; for a file that you trust: torch.load(file, weights_only=False).",
    )


RUNS = (
    Classic(
        RUNTIME,
        r"^element 0 of tensors does not require grad and does not have a grad_fn",
        Answer(
            "The loss hangs on no parameter that is trained: there is nothing to differentiate.",
            "detach(), .item(), .data, argmax or torch.no_grad() on the way from network to loss, "
            "or every parameter is frozen.",
            "print loss.grad_fn, then that of the logits, back to where it is None; or `lightning "
            "doctor`.",
        ),
    ),
    Classic(
        RUNTIME,
        r"^grad can be implicitly created only for scalar outputs",
        Answer(
            "The loss is a tensor of several numbers; only a single one can be minimised.",
            "reduction='none', or a loss per sample.",
            "return loss.mean().",
        ),
    ),
    Classic(
        RUNTIME,
        r"^Trying to backward through the graph a second time",
        Answer(
            "A part of this step's loss was computed in an earlier step, whose graph is gone.",
            "a hidden state, a running loss or a list of losses kept on self with its graph; or "
            "backward() called twice.",
            "keep state.detach() instead of state; retain_graph=True is rarely what is wanted.",
        ),
    ),
    Classic(
        RUNTIME,
        r"^one of the variables needed for gradient computation has been modified by an inplace",
        _in_place,
    ),
    Classic(
        RUNTIME,
        r"^a (?:view of a )?leaf Variable that requires grad is being used in an in-place",
        Answer(
            "A parameter was changed in place while its gradient is recorded.",
            "weights initialised or updated by hand.",
            "do it inside `with torch.no_grad():`, or with torch.nn.init.",
        ),
    ),
    Classic(
        ("RuntimeError", "AcceleratorError"),
        r"^(?:CUDA|HIP) error: device-side assert triggered",
        Answer(
            "A kernel on the GPU met a value out of range; where it shows is often later than "
            "where it happened.",
            "a label outside 0 to num_classes - 1, or an index beyond an Embedding.",
            "run once with --trainer.accelerator cpu: the error then names line and value; or "
            "`lightning doctor`.",
        ),
    ),
    Classic(
        ("AttributeError", "PicklingError", "TypeError"),
        r"^Can't (?:pickle|get) local object ('[^']+'|<[^>]+<lambda>[^>]*>)|"
        r"^Can't pickle (<function .+?>)(?= |: |$)|^[Cc]annot pickle ('[\w.]+') object",
        _pickle,
    ),
    Classic(
        RUNTIME,
        r"^Expected to have finished reduction in the prior iteration before starting a new one|"
        r"your LightningModule has parameters that were not used in producing the loss",
        _unused,
    ),
    Classic(
        ("RuntimeError", "DistBackendError", "DistStoreError", "DistNetworkError"),
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for \w+ operation|"
        r"wait timeout after \d+ms",
        _collective,
    ),
    Classic(RUNTIME, r"^Error\(s\) in loading state_dict for (\w+)", _state),
    Classic(("UnpicklingError",), r"^Weights only load failed", _refused),
)
