"""The GPU that a manifest asks nodes for, by the label of NVIDIA's GPU feature discovery."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvproof.errors import UsageError
from kvproof.hardware import accelerator

LABEL = "nvidia.com/gpu.product"
"""Source: NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery: the driver's name, spaces as -."""
_SHARED = re.compile(r"-SHARED$")
_SELECTORS = ("nodeSelector", "affinity", "nodeAffinity", "nodeSelectorTerms")
_DEEPEST = 12


def products_of(node: Mapping[str, Any]) -> tuple[str, ...]:
    """The products that a part of a manifest asks for, each once; none where it asks for none."""
    found = (name for key in _SELECTORS for name in _products(node.get(key), _DEEPEST))
    return tuple(dict.fromkeys(found))


def gpu_of(products: tuple[str, ...], label: str = LABEL) -> tuple[str | None, str | None]:
    """The table's name of the one GPU that `products` mean, and a word on how it was read.

    `label` is where they are named.
    """
    names: list[str] = []
    for product in products:
        try:
            names.append(accelerator(_driver_name(product)).name)
        except UsageError as error:
            return None, f"{label} {product[:60]!r}: {error}"
    kinds = list(dict.fromkeys(names))
    if len(kinds) == 1:
        return kinds[0], f"the GPU is {kinds[0]}, by the manifest's {label} {products[0][:60]!r}"
    return None, f"{label} allows several GPUs: {', '.join(kinds)}" if kinds else None


def _driver_name(product: str) -> str:
    """`product` as the driver spells it; a GPU shared in time is the GPU."""
    return _SHARED.sub("", product).replace("-MIG-", " MIG ")


def _products(part: Any, depth: int) -> Iterator[str]:
    """Values of the label below `part`: of a selector, or of expressions with the operator In."""
    if depth == 0:
        return
    if isinstance(part, list):
        for row in part:
            yield from _products(row, depth - 1)
    if not isinstance(part, Mapping):
        return
    if isinstance(part.get(LABEL), str):
        yield part[LABEL]
    if part.get("key") == LABEL and part.get("operator", "In") == "In":
        values = part.get("values")
        yield from (str(value) for value in (values if isinstance(values, list) else []))
    for key, row in part.items():
        # What is only preferred does not decide.
        if isinstance(row, dict | list) and not str(key).startswith("preferred"):
            yield from _products(row, depth - 1)
