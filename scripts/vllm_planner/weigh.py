"""Build vLLM's own model classes without memory and list the tensors that they would hold.

    ENV/bin/python weigh.py CASES.json ANSWERS.jsonl     (run by scripts/oracle_vllm_weights.py)

A case is as in ask.py. An answer: bytes of parameters, of tables of cosines, of other buffers and
tensors, and of the allocator's blocks of all of them in the order of making.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ask import answer_all, engine_config, know_type, on_meta, pretend_groups

_DEPTH = 3


def weigh(case: dict[str, Any]) -> dict[str, Any]:
    """The tensors of rank 0 as one model class makes them."""
    import torch
    import vllm.model_executor.layers.rotary_embedding as rotary
    import vllm.v1.worker.workspace as workspace
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    own = {key: value for key, value in case["config"].items() if key != "auto_map"}
    know_type(own)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(own))
        config = engine_config(case, folder)
        pretend_groups(case["flags"], 0)
        config.compilation_config.static_forward_context.clear()
        rotary._ROPE_DICT.clear()
        with set_current_vllm_config(config), on_meta(config.model_config.dtype):
            if not workspace.is_workspace_manager_initialized():
                workspace.init_workspace_manager(torch.device("meta"))
            model = initialize_model(config)
    return {"tensors": list(_tensors(model))}


def _tensors(model: Any) -> Iterator[tuple[str, str, int]]:
    """(name, parameter, buffer or other, bytes) of every tensor once, parameters first."""
    import torch

    seen: set[int] = set()

    def walk(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, dict | list | tuple) and depth < _DEPTH:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in items:
                yield from walk(f"{name}.{key}", inner, depth + 1)

    def found() -> Iterator[tuple[str, str, Any]]:
        yield from ((name, "parameter", x) for name, x in model.named_parameters())
        yield from ((name, "buffer", x) for name, x in model.named_buffers())
        for name, module in model.named_modules():
            for key, value in vars(module).items():
                if key not in ("_parameters", "_buffers", "_modules"):
                    yield from ((n, "other", x) for n, x in walk(f"{name}.{key}", value, 0))

    for name, kind, tensor in found():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, kind, tensor.numel() * tensor.element_size()


if __name__ == "__main__":
    answer_all(*sys.argv[1:3], weigh)
