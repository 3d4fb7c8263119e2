"""llama.cpp's graphs: the allocator's rules, the given cases, and buffers that GPUs printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_llamacpp import flags_for, given_cases

import kvproof
from kvproof.engine.base import Deployment
from kvproof.engine.llamacpp import compute
from kvproof.engine.llamacpp.context import context_of
from kvproof.engine.llamacpp.flags import flags_of
from kvproof.engine.llamacpp.graph import graph_bytes, host_bytes, reading
from kvproof.engine.llamacpp.graph.allocator import peak_bytes
from kvproof.engine.llamacpp.graph.plain import plain_graph
from kvproof.engine.llamacpp.graph.tensors import Graph
from kvproof.model.types import Model

MIB = 2**20
KIB = 256  # numbers of f32 in a KiB


def test_what_nobody_reads_any_more_is_free_again() -> None:
    graph = Graph()
    first = graph.new((KIB,), (graph.input(KIB),))
    second = graph.new((KIB,), (first,))
    third = graph.new((KIB,), (second,))
    graph.expand(third)
    assert peak_bytes(graph) == 2 * 1024  # the third lies where the input was


def test_an_operation_in_place_takes_no_memory() -> None:
    graph = Graph()
    start = graph.new((4 * KIB,), (graph.input(KIB),))
    graph.expand(graph.like(graph.like(start)))
    assert peak_bytes(graph) == 5 * 1024
    read_twice = Graph()
    start = read_twice.new((4 * KIB,), (read_twice.input(KIB),))
    read_twice.expand(read_twice.like(read_twice.like(start), start))
    assert peak_bytes(read_twice) == 9 * 1024  # the first is needed once more


def test_a_view_holds_its_base_and_the_smallest_hole_is_taken() -> None:
    graph = Graph()
    whole = graph.new((8 * KIB,), (graph.input(KIB),))
    half = graph.view(whole, 4 * KIB)
    copy = graph.new((4 * KIB,), (half,))
    graph.expand(copy)
    assert peak_bytes(graph) == 13 * 1024
    graph.expand(graph.new((KIB,), (copy,)))
    assert peak_bytes_of(graph) == 13 * 1024


def peak_bytes_of(graph: Graph) -> int:
    """The peak of a graph whose counts were used up once."""
    for tensor in (*graph.nodes, *graph.leaves):
        tensor.children = tensor.views = 0
        tensor.held = False
    return peak_bytes(graph)


def test_every_given_case_of_a_known_graph_is_exact(data_dir: Path) -> None:
    models, cases = given_cases(data_dir)
    wrong, count = [], 0
    for case in cases:
        if "error" in case:
            continue
        model = models[case["model"]]
        flags = flags_of(Deployment("llamacpp@b11549", **flags_for(case)))
        got = graph_bytes(model, context_of(model, flags))
        if got is not None:
            count += 1
            if got != case["exact_compute_bytes"]:
                wrong.append((case["id"], got, case["exact_compute_bytes"]))
    assert not wrong
    assert count >= 300


ASKED = msgspec.json.decode(Path(__file__).with_name("llamacpp_graphs.json").read_bytes())


@pytest.mark.parametrize("entry", ASKED, ids=lambda entry: entry["arch"])
def test_graphs_of_their_own_are_exact(entry: dict[str, Any]) -> None:
    """Random models with real llama.cpp b11549's answers, one of each kind of graph."""
    arch = entry["arch"]
    keys = {f"{arch}.{key}": value for key, value in entry["keys"].items()}
    model = kvproof.load_model({"general.architecture": arch, **keys})
    for asked in entry["asked"]:
        named = flags_for({"params": asked["flags"]})
        flags = flags_of(Deployment("llamacpp@b11549", **named))
        assert graph_bytes(model, context_of(model, flags)) == asked["bytes"], asked["flags"]


@pytest.mark.parametrize("name", [
    "meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b",
    "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3",
])  # fmt: skip
@pytest.mark.parametrize("flash", ["on", "off"])
def test_layers_that_repeat_can_be_left_out(
    name: str, flash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kvproof.load_model(name)
    context = context_of(model, flags_of(Deployment("llamacpp", ctx_size=8192, flash_attn=flash)))
    short = reading.shape_of(model, context)
    monkeypatch.setattr(reading, "_distinct", lambda layers: layers)
    long = reading.shape_of(model, context)
    assert short is not None
    assert long is not None
    assert len(short.layers) < len(long.layers) == model.layers
    assert peak_bytes(plain_graph(short)) == peak_bytes(plain_graph(long))


QWEN2_5 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 1536,
           "num_hidden_layers": 28, "vocab_size": 151646, "num_attention_heads": 12,
           "num_key_value_heads": 2, "intermediate_size": 8960, "max_position_embeddings": 131072,
           "torch_dtype": "bfloat16"}  # fmt: skip
ALL = {"n_outputs_max": 0, "parallel": 1}


@pytest.mark.parametrize(
    ("source", "build", "flags", "printed", "host"),
    [
        # p002 (its vocabulary follows from the buffer), p003, p083, p078 of the given logs
        (QWEN2_5, "b4000", {**ALL, "ctx_size": 8192, "batch_size": 8192, "ubatch_size": 8192,
                            "flash_attn": "on"}, 4786.94, 304.09),
        ("mistralai/Mistral-7B-v0.1", "b3000", {**ALL, "ctx_size": 2048}, 164.00, 12.01),
        ("meta-llama/Llama-3.1-8B", "b3000", {**ALL, "ctx_size": 8192}, 560.00, 24.01),
        ("Qwen/Qwen3.5-35B-A3B", "b9000", {**ALL, "ctx_size": 54784}, 493.00, None),
    ],
)  # fmt: skip
def test_buffers_that_gpus_printed(
    source: Any, build: str, flags: dict[str, Any], printed: float, host: float | None
) -> None:
    model: Model = kvproof.load_model(source)
    context = context_of(model, flags_of(Deployment(f"llamacpp@{build}", **flags)))
    size = graph_bytes(model, context, on_gpu=True)
    assert size is not None
    assert round(size / MIB, 2) == printed
    if host is not None:
        inputs = host_bytes(model, context)
        assert inputs is not None
        assert inputs / MIB == pytest.approx(host, abs=0.05)


def test_builds_reserve_logits_of_every_token_or_of_the_outputs() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    old = context_of(model, flags_of(Deployment("llamacpp@b9000", ctx_size=4096)))
    new = context_of(model, flags_of(Deployment("llamacpp@b9500", ctx_size=4096)))
    assert (old.outputs, new.outputs) == (512, 4)
    assert msgspec.structs.replace(old, build=new.build, outputs=4) == new


def bounds(model: Any, version: str = "llamacpp", **flags: Any) -> list[tuple[float, float] | None]:
    """Shares of the compute buffers' figures that bound them, None for exact ones."""
    budget = kvproof.budget(kvproof.load_model(model), Deployment(version, ctx_size=8192, **flags))
    terms = [term for term in budget.terms if term.name.startswith("compute buffer")]
    return [
        None if term.low is None or term.high is None
        else (round(term.low / term.value, 2), round(term.high / term.value, 2))
        for term in terms
    ]  # fmt: skip


def test_the_graphs_figure_is_exact_where_it_was_shown_and_bounded_elsewhere() -> None:
    llama = "meta-llama/Llama-3.1-8B"
    assert bounds(llama) == [None]
    assert bounds(llama, "llamacpp@b9500") == [(0.99, 1.10)]
    assert bounds(llama, gpu="RTX-4090")[0] == (0.99, 1.10)
    assert bounds(llama, gpu="RTX-4090", n_gpu_layers=8) == [(0.99, 2.95)] * 2
    assert bounds(llama, gpu="2xRTX-4090")[:2] == [(0.99, 2.95)] * 2
    assert bounds("deepseek-ai/DeepSeek-V3", gpu_memory=10**12)[0] == (0.99, 1.34)


def test_the_law_is_bounded_as_it_missed(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    """What has no graph: the bounds hold all but two of the answers whose graphs are known."""
    monkeypatch.setattr(compute, "graph_bytes", lambda *_, **__: None)
    models, cases = given_cases(data_dir)
    answers = [
        (models[case["model"]], flags_for(case), case["exact_compute_bytes"])
        for case in cases
        if "error" not in case
    ]
    answers += [
        (kvproof.load_model({"general.architecture": e["arch"]}
                            | {f"{e['arch']}.{key}": value for key, value in e["keys"].items()}),
         flags_for({"params": asked["flags"]}), asked["bytes"])
        for e in ASKED for asked in e["asked"]
    ]  # fmt: skip
    outside = 0
    for model, named, real in answers:
        flags = flags_of(Deployment("llamacpp@b11549", **named))
        term = compute.compute_term(model, context_of(model, flags))
        assert term.low is not None
        assert term.high is not None
        outside += not term.low <= real <= term.high
    assert (len(answers), outside) == (354, 2)


def test_experts_of_which_none_is_chosen_have_no_graph() -> None:
    entry = next(e for e in ASKED if any("expert_count" in key for key in e["keys"]))
    arch = entry["arch"]
    keys = {f"{arch}.{key}": value for key, value in entry["keys"].items()}
    keys[f"{arch}.expert_used_count"] = 0
    model = kvproof.load_model({"general.architecture": arch, **keys})
    deployment = Deployment("llamacpp@b11549", ctx_size=512)
    assert graph_bytes(model, context_of(model, flags_of(deployment))) is None
    assert kvproof.budget(model, deployment).kv_bytes >= 0
