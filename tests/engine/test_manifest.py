"""Kubernetes manifests and compose files that start an engine."""

from __future__ import annotations

import pytest

from kvproof.engine.manifest import read_manifest, servers
from kvproof.errors import InputError

KUBERNETES = """
apiVersion: v1
kind: Service
metadata: {name: llama}
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      initContainers:
        - {name: wait, image: busybox, command: [sleep, "1"]}
      containers:
        - name: server
          image: vllm/vllm-openai:v0.11.0
          args: ["--model", "meta-llama/Llama-3.1-8B", "--max-model-len", "32768",
                 "--tensor-parallel-size", "2"]
          resources: {limits: {nvidia.com/gpu: 2}}
"""
SHELL = """
kind: Pod
spec:
  containers:
    - name: server
      image: registry.local/any
      command: ["/bin/sh", "-c"]
      args: ["vllm serve Qwen/Qwen3-8B --kv-cache-dtype fp8 --max-model-len 8192"]
"""
COMPOSE = """
services:
  web: {image: nginx}
  llm:
    image: vllm/vllm-openai:latest
    command: --model Qwen/Qwen3-8B --gpu-memory-utilization 0.85
    environment: [HF_TOKEN=x]
"""


@pytest.mark.parametrize(
    ("text", "model", "flag", "value"),
    [
        (KUBERNETES, "meta-llama/Llama-3.1-8B", "tensor_parallel_size", 2),
        (SHELL, "Qwen/Qwen3-8B", "kv_cache_dtype", "fp8"),
        (COMPOSE, "Qwen/Qwen3-8B", "gpu_memory_utilization", 0.85),
    ],
)
def test_the_one_server(text: str, model: str, flag: str, value: object) -> None:
    read = read_manifest(text, "2xH100-80GB")
    assert read.model == model
    assert read.deployment.flags[flag] == value


def test_kubernetes_variables_are_filled_in() -> None:
    text = SHELL.replace("8192", "$(LENGTH)") + "      env: [{name: LENGTH, value: '4096'}]\n"
    assert read_manifest(text, "H100-80GB").deployment.flags["max_model_len"] == 4096


def test_the_images_tag_names_the_release() -> None:
    assert str(read_manifest(KUBERNETES, "2xH100-80GB").deployment.engine) == "vllm@0.11.0"
    assert str(read_manifest(COMPOSE, "H100-80GB").deployment.engine) == "vllm"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kind: Pod",
        "{",
        "a: &a [*a]",
        "- [" * 3000,
        SHELL + "\n---\n" + COMPOSE,
        "image: vllm/vllm-openai\nargs: ['--model', '{{ .Values.model }}']\nx: {{ .Values.y }}",
        "command: 'unclosed",
        "x: !!python/object/apply:os.system [echo]",
        "&a [" + "*a," * 5,
    ],
)
def test_what_serves_nothing_or_too_much(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_manifest(text, "H100-80GB")
    assert "\n" not in str(caught.value)


LEADERS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: big}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - name: leader
            image: lmsysorg/sglang:v0.5.8
            command: [sh, -c]
            args:
              - |
                # the leader; it's rank 0
                export SIZE=16
                pip install -q x
                exec python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 \\
                  --tp $SIZE --nnodes 2 --node-rank $(LWS_WORKER_INDEX)
            resources: {limits: {nvidia.com/gpu: "8"}}
    workerTemplate:
      spec:
        containers:
          - name: worker
            image: lmsysorg/sglang:v0.5.8
            command: [python3, -m, sglang.launch_server, --model-path, deepseek-ai/DeepSeek-V3]
"""
KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    minReplicas: 3
    model:
      modelFormat: {name: huggingface}
      storageUri: hf://meta-llama/Llama-3.1-8B
      args: [--model_name=llama, --max-model-len=8192]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""
LLM = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: big}
spec:
  model: {uri: "hf://Qwen/Qwen3-32B", name: qwen}
  replicas: 2
  parallelism: {tensor: 4}
  template:
    containers: [{name: main, resources: {limits: {nvidia.com/gpu: "4"}}}]
  worker:
    containers: [{name: main, resources: {limits: {nvidia.com/gpu: "4"}}}]
"""
LLMD = """
modelArtifacts: {uri: "hf://Qwen/Qwen3-32B", name: Qwen/Qwen3-32B}
decode:
  parallelism: {tensor: 2, data: 1}
  replicas: 8
  containers:
    - name: vllm
      image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
      modelCommand: vllmServe
      args: [--gpu-memory-utilization=0.95]
prefill: {create: false, containers: [{image: "ghcr.io/llm-d/llm-d-cuda:v0.5.0"}]}
"""
STACK = """
servingEngineSpec:
  modelSpec:
    - name: llama
      repository: vllm/vllm-openai
      tag: v0.11.0
      modelURL: meta-llama/Llama-3.1-8B
      replicaCount: 2
      requestGPU: 2
      vllmConfig: {maxModelLen: 16384, tensorParallelSize: 2, extraArgs: [--max-num-seqs, "32"]}
    - name: mistral
      repository: vllm/vllm-openai
      tag: latest
      modelURL: mistralai/Mistral-7B-v0.1
      requestGPU: 1
"""
LIST = """
apiVersion: v1
kind: List
items:
  - kind: ConfigMap
    metadata: {name: options}
    data:
      extra.yml: |
        kv_cache_config: {free_gpu_memory_fraction: 0.7, enable_block_reuse: true}
  - kind: StatefulSet
    metadata: {name: trt}
    spec:
      template:
        spec:
          containers:
            - name: serve
              image: nvcr.io/nvidia/tensorrt-llm/release:1.1.0
              command: [trtllm-serve, Qwen/Qwen3-8B, --extra_llm_api_options, /etc/extra.yml]
"""
LLAMACPP = """
x-common: &common
  restart: always
  deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
services:
  llm:
    <<: *common
    image: ghcr.io/ggml-org/llama.cpp:server-cuda-b6000
    environment: {LLAMA_ARG_HF_REPO: "org/x:Q8_0", LLAMA_ARG_CTX_SIZE: 8192}
  other:
    image: vllm/vllm-openai:${TAG:-v0.20.0}
    command: Qwen/Qwen3-8B --tensor-parallel-size ${TP:-2}
    deploy: {replicas: 2}
"""


@pytest.mark.parametrize(
    ("text", "server", "engine", "model", "gpu"),
    [
        (LEADERS, None, "sglang@0.5.8", "deepseek-ai/DeepSeek-V3", "32xH200-141GB"),
        (KSERVE, None, "vllm", "meta-llama/Llama-3.1-8B", "3xH200-141GB"),
        (LLM, None, "vllm", "Qwen/Qwen3-32B", "8xH200-141GB"),
        (LLMD, None, "vllm", "Qwen/Qwen3-32B", "16xH200-141GB"),
        (STACK, "llama", "vllm@0.11.0", "meta-llama/Llama-3.1-8B", "4xH200-141GB"),
        (STACK, "mistralai/Mistral-7B-v0.1", "vllm", "mistralai/Mistral-7B-v0.1", "H200-141GB"),
        (LIST, None, "tensorrt_llm@1.1.0", "Qwen/Qwen3-8B", "H200-141GB"),
        (LLAMACPP, "llm", "llamacpp@b6000", "org/x:Q8_0", "2xH200-141GB"),
        (LLAMACPP, "other", "vllm@0.20.0", "Qwen/Qwen3-8B", "4xH200-141GB"),
    ],
)
def test_what_clusters_start(
    text: str, server: str | None, engine: str, model: str, gpu: str
) -> None:
    read = read_manifest(text, "H200-141GB", server=server)
    assert str(read.deployment.engine) == engine
    assert read.model == model
    assert read.deployment.gpu == gpu


def test_flags_of_the_parts_above() -> None:
    assert read_manifest(LLMD).deployment.flags == {
        "gpu_memory_utilization": 0.95, "tensor_parallel_size": 2, "data_parallel_size": 1,
    }  # fmt: skip
    assert read_manifest(STACK, server="llama").deployment.flags == {
        "max_model_len": 16384, "tensor_parallel_size": 2, "max_num_seqs": 32,
        "enable_prefix_caching": False,
    }  # fmt: skip
    config = read_manifest(LIST).deployment.flags["kv_cache_config"]
    assert config == {"free_gpu_memory_fraction": 0.7, "enable_block_reuse": True}


def test_several_servers_are_offered_by_name() -> None:
    with pytest.raises(InputError, match="2 servers: llama, mistral; choose one by --server"):
        read_manifest(STACK)
    with pytest.raises(InputError, match="no server 'qwen'; it has llama, mistral"):
        read_manifest(STACK, server="qwen")


def test_gpus_that_do_not_suit_are_said() -> None:
    text = KUBERNETES.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 1")
    assert any("won't start" in note for note in read_manifest(text).notes)
    text = KUBERNETES.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 4")
    assert any("uses 2 of them" in note for note in read_manifest(text).notes)
    assert not read_manifest(KUBERNETES).notes
    assert any(
        "2 GPUs are given" in n for n in read_manifest(STACK, "2xH200", server="llama").notes
    )


GIVEN = "2xH200-141GB"


def test_a_given_count_of_gpus_stays() -> None:
    assert read_manifest(STACK, GIVEN, server="llama").deployment.gpu == GIVEN


BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], k{i}: 1}}\n" for i in range(1, 60)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\n" + "".join(f"k{i}: &b{i} [*a, *a]\n" for i in range(1000)),
        "a0: &a0 {x: 1}\n"
        + "".join(
            f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], k{i}: 1}}\n"
            for i in range(1, 60)
        ),
        "a: &a {<<: *a, image: x}",
        "image: [vllm]\nargs: {a: b}",
        "command: vllm serve m/n --max-model-len x",
    ],
)
def test_hostile_manifests_end(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_manifest(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("image", "command", "engine"),
    [
        ("vllm/vllm-openai:v0.11.0", "meta-llama/Llama-3.1-8B --max-model-len 8192", "vllm@0.11.0"),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.9.1", "--model a/b", "vllm@0.9.1"),
        ("opea/vllm-gaudi:1.3", "vllm serve a/b", "vllm"),
        ("lmcache/vllm-openai:v0.4.7", "a/b", "vllm"),
        ("ollama/ollama:0.12.3", "", "ollama@0.12.3"),
        ("ghcr.io/ggml-org/llama.cpp:server-b6000", "-hf a/b:Q4_K_M", "llamacpp@b6000"),
    ],
)
def test_each_engine_knows_its_images(image: str, command: str, engine: str) -> None:
    line = f'    command: "{command}"\n' if command else ""
    found = servers(f"services:\n  web:\n    image: {image}\n{line}")
    assert str(found[0].command.deployment.engine) == engine


def test_an_ollama_service_can_be_chosen_beside_others() -> None:
    """It names no model; a server that does is read where nobody chooses."""
    text = (
        "services:\n"
        "  llm: {image: 'vllm/vllm-openai:v0.11.0', command: --model a/b}\n"
        "  ollama: {image: 'ollama/ollama:0.11.4', environment: {OLLAMA_NUM_PARALLEL: '2'}}\n"
        "  web: {image: nginx}\n"
    )
    chosen = read_manifest(text, server="ollama")
    assert str(chosen.deployment.engine) == "ollama@0.11.4"
    assert chosen.deployment.flags == {"num_parallel": 2}
    assert not chosen.notes
    read = read_manifest(text)
    assert read.model == "a/b"
    assert read.notes == ("llm is read; servers without a model too: ollama",)
    with pytest.raises(InputError, match="it has llm, ollama"):
        read_manifest(text, server="web")


SELECTOR = "nodeSelector: {nvidia.com/gpu.product: %s}"
AFFINITY = (
    "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
    "{nodeSelectorTerms: [{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, "
    "values: [%s]}]}]}}}"
)


@pytest.mark.parametrize(
    ("form", "product", "gpu"),
    [
        (SELECTOR, "NVIDIA-H100-80GB-HBM3", "2xH100-80GB"),
        (SELECTOR, "NVIDIA-H100-80GB-HBM3-SHARED", "2xH100-80GB"),
        (AFFINITY, "NVIDIA-L40S", "2xL40S-48GB"),
        (AFFINITY, "NVIDIA-L40S, NVIDIA-H100-80GB-HBM3", None),
        (AFFINITY.replace("In,", "NotIn,"), "NVIDIA-L40S", None),
        (AFFINITY.replace("required", "preferred"), "NVIDIA-L40S", None),
        (SELECTOR, "NVIDIA-NOTHING", None),
    ],
)
def test_the_nodes_label_names_the_gpu(form: str, product: str, gpu: str | None) -> None:
    text = KUBERNETES.replace(
        "      initContainers:", f"      {form % product}\n      initContainers:"
    )
    read = read_manifest(text)
    found = read.deployment
    assert (f"{found.gpu_count}x{found.accelerator.name}" if found.accelerator else None) == gpu
    assert any("gpu.product" in note for note in read.notes) == (form in (SELECTOR, AFFINITY))
    assert read_manifest(text, "2xB200").deployment.gpu == "2xB200-180GB"


_SLICE = """
kind: Pod
spec:
  {selector}
  containers:
  - image: lmsysorg/sglang:v0.5.3
    command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B]
    resources: {{limits: {{{resource}: 1}}}}
"""


@pytest.mark.parametrize(
    ("resource", "gpu", "planned"),
    [
        ("nvidia.com/mig-3g.40gb", None, "H100-80GB:3g.40gb"),
        ("nvidia.com/mig-1g.10gb.me", "A100-80GB", "A100-80GB:1g.10gb"),
        ("nvidia.com/mig-3g.40gb", "H100-80GB:1g.10gb", "H100-80GB:1g.10gb"),
        ("nvidia.com/gpu", "H100-80GB", "H100-80GB"),
    ],
)
def test_a_container_that_asks_for_a_slice_gets_one(
    resource: str, gpu: str | None, planned: str
) -> None:
    selector = "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}"
    read = read_manifest(_SLICE.format(resource=resource, selector=selector), gpu)
    assert read.deployment.gpu == planned
    assert any("asks for MIG slices" in note for note in read.notes) is (
        "mig" in resource and ":" not in str(gpu)
    )


def test_a_slice_that_the_gpu_does_not_offer_is_refused() -> None:
    text = _SLICE.format(resource="nvidia.com/mig-3g.40gb", selector="{}")
    with pytest.raises(InputError, match=r"L40S-48GB has no MIG profile"):
        read_manifest(text.replace("  {}\n", ""), "L40S")


SKYPILOT = """
name: qwen
resources:
  accelerators: %s
envs: {MODEL: Qwen/Qwen3-8B}
num_nodes: 1
setup: |
  pip install "vllm==0.11.0"
run: |
  echo serving $MODEL
  vllm serve $MODEL --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE --max-model-len 8192
%s
"""


@pytest.mark.parametrize(
    ("asked", "service", "gpu"),
    [
        ("H100:2", "", "2xH100-80GB"),
        ("{A100: 2}", "", "2xA100-40GB"),
        ("[A100-80GB:2]", "service: {replica_policy: {min_replicas: 3}}", "6xA100-80GB"),
        ("A100-80GB:2", "service: {replicas: 2}", "4xA100-80GB"),
    ],
)
def test_a_task_of_skypilot(asked: str, service: str, gpu: str) -> None:
    read = read_manifest(SKYPILOT % (asked, service))
    assert read.model == "Qwen/Qwen3-8B"
    assert read.deployment.gpu == gpu
    assert str(read.deployment.engine) == "vllm@0.11.0"
    assert read.deployment.flags == {"tensor_parallel_size": 2, "max_model_len": 8192}


def test_accelerators_that_may_differ_name_none() -> None:
    text = SKYPILOT % ("{H100: 2, H200: 2}", "")
    assert read_manifest(text).deployment.gpu is None
    assert read_manifest(text, "H200").deployment.first is not None


RAY = """
applications:
  - name: llms
    args:
      llm_configs:
        - model_loading_config: {model_id: small, model_source: Qwen/Qwen3-8B}
          accelerator_type: A100-40G
          deployment_config: {autoscaling_config: {min_replicas: 2, max_replicas: 8}}
          engine_kwargs:
            tensor_parallel_size: 2
            max_model_len: 8192
            enable_prefix_caching: false
            hf_overrides: {a: 1}
"""
RAY_SERVICE = "kind: RayService\nmetadata: {name: s}\nspec:\n  serveConfigV2: |\n" + "".join(
    f"    {line}\n" for line in RAY.splitlines()
)


@pytest.mark.parametrize("text", [RAY, RAY_SERVICE])
def test_a_model_of_ray_serve(text: str) -> None:
    read = read_manifest(text, server="small")
    assert read.model == "Qwen/Qwen3-8B"
    assert read.deployment.gpu == "4xA100-40GB"
    assert read.deployment.flags == {
        "tensor_parallel_size": 2, "max_model_len": 8192, "enable_prefix_caching": False,
        "hf_overrides": {"a": 1},
    }  # fmt: skip
    with pytest.raises(InputError, match="--max-model-lenx"):
        read_manifest(text.replace("max_model_len:", "max_model_lenx:"))


DYNAMO = """
kind: DynamoGraphDeployment
metadata: {name: agg}
spec:
  services:
    Frontend:
      replicas: 1
      extraPodSpec: {mainContainer: {image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0}}
    Worker:
      replicas: 2
      resources: {limits: {gpu: "4"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-8B, --tensor-parallel-size, "2", --migration-limit, "3"]
"""


def test_a_worker_of_a_dynamo_graph() -> None:
    [server] = servers(DYNAMO)
    assert (server.name, server.gpus, server.replicas) == ("Worker", 4, 2)
    read = read_manifest(DYNAMO, "H100-80GB")
    assert read.deployment.gpu == "4xH100-80GB"
    assert read.deployment.flags == {"tensor_parallel_size": 2}
    assert any("uses 2 of them" in note for note in read.notes)


@pytest.mark.parametrize(
    ("text", "engine", "model"),
    [
        ("#!/bin/bash\nM=Qwen/Qwen3-8B\nvllm serve $M --port 80\n", "vllm", "Qwen/Qwen3-8B"),
        ("FROM llama3.1:8b\nPARAMETER num_ctx 16384\n", "ollama", "ollama:llama3.1:8b"),
    ],
)
def test_a_script_or_modelfile_in_place_of_a_manifest(text: str, engine: str, model: str) -> None:
    read = read_manifest(text, "H100-80GB")
    assert (read.deployment.engine.name, read.model) == (engine, model)
    with pytest.raises(InputError, match="no container of the manifest"):
        read_manifest("a: {b: c}\n")
