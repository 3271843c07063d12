# SPDX-License-Identifier: Apache-2.0
"""The size of a torch module that a factory makes."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from hopsum.plan import PlanError


def module_elements(reference: str) -> int:
    """Return how many parameters have gradients of the module that `package:factory` returns, each counted once.

    The working directory is on the path, as it is for a script there.

    Raises:
        PlanError: no such reference, it fails, or what it returns has no such parameters.
    """
    package, colon, name = reference.partition(":")
    if not (package and colon and name):
        raise PlanError(f"--module {reference}: package:factory is needed, like torchvision.models:resnet50")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(import_module(package), name)()
        elements = sum(each.numel() for each in made.parameters() if each.requires_grad)
    except Exception as error:  # whatever the user's code raises is the user's to read
        raise PlanError(f"--module {reference}: {type(error).__name__}: {error}") from error
    if not elements:
        raise PlanError(f"--module {reference}: {type(made).__name__} has no parameter with a gradient")
    return int(elements)
