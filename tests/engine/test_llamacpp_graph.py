"""llama.cpp's graphs: the allocator's rules, the given cases, and buffers that GPUs printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_llamacpp import flags_for, given_cases

import kvproof
from kvproof.engine.base import Deployment
from kvproof.engine.llamacpp import compute
from kvproof.engine.llamacpp.context import context_of
from kvproof.engine.llamacpp.devices import placement
from kvproof.engine.llamacpp.flags import flags_of
from kvproof.engine.llamacpp.graph import (
    graph_bytes,
    repeating,
    shape_bytes,
    shape_of,
    split_bytes,
)
from kvproof.engine.llamacpp.graph.allocator import peak_bytes
from kvproof.engine.llamacpp.graph.plain import plain_graph
from kvproof.engine.llamacpp.graph.schedule import Weights, Where
from kvproof.engine.llamacpp.graph.tensors import Graph
from kvproof.engine.llamacpp.layout import pieces
from kvproof.engine.llamacpp.memory import settle
from kvproof.engine.llamacpp.overrides import HOST
from kvproof.engine.llamacpp.split import where_of
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
        context = context_of(model, flags)
        assert graph_bytes(model, context) == asked["bytes"], asked["flags"]
        if "context" in asked:
            assert sum(piece.bytes for piece in pieces(model, context)) == asked["context"]


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
    short = shape_of(model, context)
    monkeypatch.setattr(repeating, "_distinct", lambda layers: (layers, None))
    long = shape_of(model, context)
    assert short is not None
    assert long is not None
    assert len(short.layers) < len(long.layers) == model.layers
    assert peak_bytes(plain_graph(short)) == peak_bytes(plain_graph(long))


def test_layers_stay_where_memory_drifts_from_round_to_round() -> None:
    """Hunyuan MoE with sixteen streams: llama.cpp b11549's answer, which four layers miss."""
    entry = next(e for e in ASKED if e["arch"] == "hunyuan-moe")
    keys = {f"hunyuan-moe.{key}": value for key, value in entry["keys"].items()}
    model = kvproof.load_model({"general.architecture": "hunyuan-moe", **keys})
    flags = flags_of(Deployment(
        "llamacpp@b11549", **flags_for({"params": entry["asked"][0]["flags"]})
    ))  # fmt: skip
    context = context_of(model, flags)
    short = shape_of(model, context)
    assert short is not None
    assert len(short.layers) < model.layers
    assert shape_bytes(short) is None
    assert peak_bytes(plain_graph(short)) < entry["asked"][0]["bytes"]


@pytest.mark.parametrize(("flags", "flash"), [
    ({"parallel": 32}, False), ({"parallel": 31}, True),
    ({"parallel": 32, "flash_attn": "on"}, True), ({"parallel": 32, "n_gpu_layers": 99}, True),
    ({"parallel": 32, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, True),
    ({"parallel": 32, "op_offload": False}, True),
])  # fmt: skip
def test_many_sequences_lose_flash_attention_where_layers_stay_on_the_host(
    flags: dict[str, Any], flash: bool
) -> None:
    """resolve_fused_ops: one token of every sequence is a batch that leaves the host."""
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    named = {"ctx_size": 8192, "n_gpu_layers": 8, "fit": False, **flags}
    assert settle(model, Deployment("llamacpp", gpu="RTX-4090", **named)).context.flash is flash


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
    sizes = split_bytes(model, context, places((0,) * model.layers))
    assert sizes is not None
    assert round(sizes[0] / MIB, 2) == printed
    if host is not None:
        assert sizes[HOST] / MIB == pytest.approx(host, abs=0.05)


def places(layers: tuple[int, ...], output: int = 0, gpus: int = 1, **more: Any) -> Where:
    return Where(
        layers=layers, caches=layers, experts=layers, output=output, gpus=gpus, **more
    )  # fmt: skip


def q4_k_m(model: Model) -> tuple[Weights, ...]:
    """The largest tensors of a Q4_K_M file: queries in q4_K, down projection and output in q6_K."""
    q4, q6, wide = 4.5 / 8, 210 / 256, model.hidden_size
    inner, output = wide * int(model.config["intermediate_size"]), model.vocab_size * wide
    layer = Weights(sizes=((inner, int(inner * q6)),), each=q4)
    return (*[layer] * model.layers, Weights(sizes=((output, int(output * q6)),)))


LLAMA_70B = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
             "num_hidden_layers": 80, "vocab_size": 32000, "num_attention_heads": 64,
             "num_key_value_heads": 8, "intermediate_size": 28672, "torch_dtype": "float16",
             "max_position_embeddings": 8192}  # fmt: skip
Q8 = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"}


@pytest.mark.parametrize(
    ("source", "build", "flags", "layers", "output", "printed", "host"),
    [
        # p104, p005 and p041: layers on the host by what the caches' buffers are
        ("Qwen/Qwen3-4B", "b5200", {"ctx_size": 16348, "flash_attn": "off"},
         (HOST,) * 10 + (0,) * 26, 0, 1181.38, 36.94),
        (LLAMA_70B, "b4000", {"ctx_size": 8192, "flash_attn": "off"},
         (HOST,) * 2 + (0,) * 46 + (1,) * 32, HOST, 1108.50, None),
        ("Qwen/Qwen3-32B", "b6000", {"ctx_size": 8192, **Q8},
         (HOST,) * 35 + (0,) * 29, HOST, 916.08, 26.01),
    ],
)  # fmt: skip
def test_buffers_of_graphs_that_are_split(
    source: Any, build: str, flags: dict[str, Any], layers: tuple[int, ...], output: int,
    printed: float, host: float | None,
) -> None:  # fmt: skip
    """Weights and caches of the host's layers are copied to the GPU that computes a batch."""
    model: Model = kvproof.load_model(source)
    context = context_of(model, flags_of(Deployment(f"llamacpp@{build}", **ALL, **flags)))
    where = places(layers, output, max(layers) + 1, weights=q4_k_m(model))
    sizes = split_bytes(model, context, where)
    assert sizes is not None
    assert sizes[0] / MIB == pytest.approx(printed, rel=0.001)
    if host is not None:
        assert sizes[HOST] / MIB == pytest.approx(host, abs=0.1)


SPLITS = json.loads((Path(__file__).parent / "llamacpp_splits.json").read_text())
C_API = {"n_ctx": "ctx_size", "n_seq_max": "parallel", "n_batch": "batch_size",
         "n_ubatch": "ubatch_size", "type_k": "cache_type_k", "type_v": "cache_type_v",
         "offload_kqv": "kv_offload"}  # fmt: skip


@pytest.mark.parametrize("asked", SPLITS["cases"], ids=lambda c: f"{c['arch']}-{c['layers']}")
def test_the_programs_buffers_of_gpus_and_host(asked: dict[str, Any]) -> None:
    """What llama.cpp reserved on GPUs that compute nothing: metadata alone, f32, a dry run."""
    arch = asked["arch"]
    keys = {f"{arch}.{key}": value for key, value in SPLITS["models"][arch].items()}
    model: Model = kvproof.load_model({"general.architecture": arch, **keys})
    given = {C_API.get(name, name): value for name, value in asked["case"].items()}
    given = {"n_outputs_max": 0, **given, "n_gpu_layers": asked["layers"]}
    flags = flags_of(Deployment("llamacpp@b11549", **given))
    where = msgspec.structs.replace(
        where_of(model, flags, placement(model, flags, asked["gpus"])), norms_stay=False,
        weights=(Weights(each=4.0, expert=4.0),) * (model.layers + 1),
    )  # fmt: skip
    sizes = split_bytes(model, context_of(model, flags), where)
    assert sizes is not None
    assert {str(device): sizes[device] for device in map(int, asked["sizes"])} == asked["sizes"]


@pytest.mark.parametrize(
    ("name", "build", "flags", "layers", "turns", "printed"),
    [
        # issue 11200: micro-batches of 256 by its host buffer; PR 6122; issue 13661: by rows
        ("Qwen/Qwen2.5-32B", "b4450", {**Q8, "ctx_size": 32768, "ubatch_size": 256},
         (0,) * 41 + (1,) * 23, True, [233.0, 237.51, 133.01]),
        ("CohereForAI/c4ai-command-r-v01", "b2500", {"ctx_size": 4096, "flash_attn": "off"},
         (0,) * 12 + (1,) * 28, True, [672.01]),
        ("Qwen/Qwen3-30B-A3B", "b5400", {"ctx_size": 30000, "flash_attn": "off"},
         (0,) * 12 + (1,) * 12 + (2,) * 12 + (3,) * 12, False, [1958.63] * 4 + [62.63]),
    ],
)  # fmt: skip
def test_public_starts_of_several_gpus(
    name: str, build: str, flags: dict[str, Any], layers: tuple[int, ...], turns: bool,
    printed: list[float],
) -> None:  # fmt: skip
    """Buffers of threads of ggml-org/llama.cpp, GPUs first and the host last, to the digit."""
    model = kvproof.load_model(name)
    context = context_of(model, flags_of(Deployment(f"llamacpp@{build}", **ALL, **flags)))
    gpus = max(layers) + 1
    sizes = split_bytes(model, context, places(layers, gpus - 1, gpus, pipelined=turns))
    assert sizes is not None
    found = [round(sizes[device] / MIB, 2) for device in (*range(gpus), HOST)]
    assert found[: len(printed)] == printed


def test_gpus_that_work_in_turn_keep_their_inputs_four_times() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    context = context_of(model, flags_of(Deployment("llamacpp", ctx_size=8192, parallel=1)))
    halves = (0,) * 16 + (1,) * 16
    plain = split_bytes(model, context, places(halves, 1, 2))
    turns = split_bytes(model, context, places(halves, 1, 2, pipelined=True))
    assert plain is not None
    assert turns is not None
    mask, stream = 2 * 8192 * 512, 4 * 4096 * 512
    assert turns[1] - plain[1] == pytest.approx(3 * mask + 4 * stream, rel=0.1)
    assert turns[HOST] > 2 * plain[HOST]
    whole = split_bytes(model, context, places((0,) * 32))
    assert whole is not None
    assert whole[0] == pytest.approx(plain[0], rel=0.1)


def test_small_batches_stay_where_the_weights_are() -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B")
    few = flags_of(Deployment("llamacpp", ctx_size=8192, ubatch_size=16, parallel=1))
    where = places((HOST,) * 32, HOST)
    small = split_bytes(model, context_of(model, few), where)
    assert small is not None
    assert small[0] == 0
    many = context_of(model, flags_of(Deployment("llamacpp", ctx_size=8192, parallel=1)))
    large = split_bytes(model, many, where)
    kept = split_bytes(model, many, msgspec.structs.replace(where, offloads=False))
    assert large is not None
    assert kept is not None
    assert large[0] > 0 == kept[0]


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
    assert bounds(llama, gpu="RTX-4090", n_gpu_layers=8) == [(0.99, 1.10)] * 2
    assert bounds(llama, gpu="2xRTX-4090")[:2] == [(0.99, 1.10)] * 2
    assert bounds("deepseek-ai/DeepSeek-V3", gpu_memory=10**12)[0] == (0.99, 1.10)


def test_the_law_is_bounded_as_it_missed(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    """What has no graph: the bounds hold all but four of the answers whose graphs are known."""
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
    assert (len(answers), outside) == (381, 4)


def test_experts_of_which_none_is_chosen_have_no_graph() -> None:
    entry = next(e for e in ASKED if any("expert_count" in key for key in e["keys"]))
    arch = entry["arch"]
    keys = {f"{arch}.{key}": value for key, value in entry["keys"].items()}
    keys[f"{arch}.expert_used_count"] = 0
    model = kvproof.load_model({"general.architecture": arch, **keys})
    deployment = Deployment("llamacpp@b11549", ctx_size=512)
    assert graph_bytes(model, context_of(model, flags_of(deployment))) is None
    assert kvproof.budget(model, deployment).kv_bytes >= 0


def test_what_the_graph_fills_itself_lies_where_it_is_read() -> None:
    """A public start of GLM-5.2 on four GPUs, 524,288 cells, the first layers' experts on the host:
    the host's buffer holds the two masks and rows of tokens, no zeros of the sparse masks."""
    model = kvproof.load_model("zai-org/GLM-5.2", offline=True)
    deployment = kvproof.Deployment(
        "llamacpp@b9830", "4xRTX-PRO-6000-Blackwell-96GB", ctx_size=524288, parallel=1,
        n_cpu_moe=50,
    )  # fmt: skip
    flags = flags_of(deployment)
    layers = (0,) * 55 + (1,) * 9 + (2,) * 8 + (3,) * 6
    place = msgspec.structs.replace(placement(model, flags, 4), layers=layers, output=3)
    sizes = split_bytes(model, context_of(model, flags), where_of(model, flags, place))
    assert sizes is not None
    assert round(sizes[HOST] / 2**20, 2) == 1048.07
    assert round(sizes[2] / 2**20, 2) == 2292.07
    assert sizes[1] / 2**20 == pytest.approx(2300.07, rel=0.002)
    assert sizes[3] / 2**20 == pytest.approx(2284.07, rel=0.01)
