"""Which GPU a llama.cpp or Ollama log means, by the lines of every backend."""

from __future__ import annotations

import pytest

import kvproof
from kvproof.errors import UsageError
from kvproof.observe.cards import card
from kvproof.observe.deploy import setup_of

GIB = 2**30
TAIL = """
llama_context: n_ctx         = 4096
llama_kv_cache:      {} KV buffer size =   512.00 MiB
"""
COMPUTE = 'level=INFO source=types.go:42 msg="inference compute" id='
STARTS = {
    "CUDA with memory": ("CUDA0", """
ggml_cuda_init: found 1 CUDA devices (Total VRAM: 15948 MiB):
  Device 0: NVIDIA GeForce RTX 4060 Ti, compute capability 8.9, VMM: yes, VRAM: 15948 MiB
""", "RTX-4060-Ti-16GB", 1),
    "CUDA with free memory": ("CUDA0", """
  Device 0: NVIDIA GeForce RTX 4060 Ti, compute capability 8.9, VMM: yes
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4060 Ti) - 15014 MiB free
""", "RTX-4060-Ti-16GB", 1),
    "CUDA with less free memory": ("CUDA0", """
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4060 Ti) - 7110 MiB free
""", "RTX-4060-Ti-8GB", 1),
    "its breakdown": ("CUDA0", """
  Device 0: NVIDIA GeForce RTX 4060 Ti, compute capability 8.9, VMM: yes
llama_memory_breakdown_print: |   - CUDA0 (RTX 4060 Ti)  | 15948 = 9000 + (6000 =  5000 +     512 \
+     488) +         948 |
""", "RTX-4060-Ti-16GB", 1),
    "devices listed": ("CUDA0", """
device_info:
  - CUDA0   : NVIDIA GeForce RTX 4060 Ti (15948 MiB, 14780 MiB free)
  - CPU     : Intel(R) Core(TM) i7 (64000 MiB, 64000 MiB free)
""", "RTX-4060-Ti-16GB", 1),
    "ROCm": ("ROCm0", """
ggml_cuda_init: found 1 ROCm devices (Total VRAM: 24560 MiB):
  Device 0: AMD Radeon RX 7900 XTX, gfx1100 (0x1100), VMM: no, Wave Size: 32, VRAM: 24560 MiB
""", "RX-7900-XTX-24GB", 1),
    "Vulkan": ("Vulkan0", """
ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1 | bf16: 0
""", "RX-7900-XTX-24GB", 1),
    "Metal": ("Metal", """
ggml_metal_init: GPU name:   Apple M2 Ultra
ggml_metal_init: recommendedMaxWorkingSetSize  = 154618.82 MB
""", "M2-Ultra-192GB", 1),
    "Metal by device": ("MTL0", """
ggml_metal_device_init: GPU name:   MTL0 (Apple M4 Max)
ggml_metal_device_init: recommendedMaxWorkingSetSize  = 38654.71 MB
llama_model_load_from_file_impl: using device MTL0 (Apple M4 Max) (unknown id) - 36863 MiB free
""", "M4-Max-48GB", 1),
    "SYCL": ("SYCL0", """
|ID|        Device Type|                Name|Version|units  |group   |group|size   |       Driver|
| 0| [level_zero:gpu:0]| Intel Arc A770 Graphics|  12.55|    512|    1024|   32| 16225M|  1.3.29138|
""", "Arc-A770-16GB", 1),
    "Ollama": ("CUDA0", f"""
{COMPUTE}GPU-1 filter_id="" library=CUDA compute=8.9 name=CUDA0 description="NVIDIA GeForce RTX \
4060 Ti" libdirs=ollama,cuda_v13 driver=13.0 pci_id=0000:01:00.0 type=discrete total="16.0 GiB" \
available="14.8 GiB"
""", "RTX-4060-Ti-16GB", 1),
    "Ollama on Vulkan": ("Vulkan0", f"""
{COMPUTE}00000000-0300 filter_id="" library=Vulkan compute=0.0 name=Vulkan0 description="AMD \
Radeon RX 7900 XTX (RADV NAVI31)" libdirs=ollama,vulkan driver=0.0 pci_id=0000:03:00.0 \
type=discrete total="24.0 GiB" available="22.8 GiB"
""", "RX-7900-XTX-24GB", 1),
    "Ollama on Metal": ("Metal", f"""
{COMPUTE}0 filter_id="" library=Metal compute=0.0 name=Metal description="Apple M3 Pro" \
libdirs="" driver=0.0 pci_id="" type=discrete total="27.0 GiB" available="27.0 GiB"
""", "M3-Pro-36GB", 1),
    "Ollama by PCI number": ("ROCm0", f"""
{COMPUTE}0 library=rocm variant="" compute=gfx1100 driver=6.3 name=1002:744c total="24.0 GiB" \
available="23.9 GiB"
""", "RX-7900-XTX-24GB", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_the_card_is_the_one_whose_memory_is_printed(name: str) -> None:
    device, text, card_name, count = STARTS[name]
    setup = setup_of(kvproof.read_log(text + TAIL.format(device)))
    assert [(n, kind.name) for n, kind in setup.deployment.kinds] == [(count, card_name)]
    assert "gpu_memory" not in setup.deployment.flags


def test_cards_of_two_kinds_are_told_apart() -> None:
    text = """
ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1 | warp size: 64
ggml_vulkan: 1 = NVIDIA GeForce RTX 4060 Ti (NVIDIA) | uma: 0 | fp16: 1 | warp size: 32
using device Vulkan0 (AMD Radeon RX 7900 XTX (RADV NAVI31)) - 24560 MiB free
using device Vulkan1 (NVIDIA GeForce RTX 4060 Ti) - 15900 MiB free
llama_kv_cache:    Vulkan0 KV buffer size =   256.00 MiB
llama_kv_cache:    Vulkan1 KV buffer size =   256.00 MiB
"""
    kinds = setup_of(kvproof.read_log(text)).deployment.kinds
    assert [kind.name for _, kind in kinds] == ["RX-7900-XTX-24GB", "RTX-4060-Ti-16GB"]


def test_memory_that_no_card_of_the_name_has_is_taken_as_printed() -> None:
    text = """
  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes, VRAM: 48508 MiB
"""
    setup = setup_of(kvproof.read_log(text + TAIL.format("CUDA0")))
    assert setup.deployment.flags["gpu_memory"] == 48508 * 2**20
    assert any("as printed" in said for said in setup.assumptions)


def test_a_name_that_several_share_needs_memory() -> None:
    assert card("Apple M1", memory=11.4e9).name == "M1-16GB"
    assert card("Intel(R) Arc(TM) A770 Graphics").name == "Arc-A770-16GB"
    with pytest.raises(UsageError):
        card("Apple M1")
    with pytest.raises(UsageError):
        card("a card of nobody", memory=8 * GIB)
