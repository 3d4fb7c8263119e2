# %% [markdown]
# # Sharing keys and values: MHA, GQA, MQA, MLA
#
# In multi-head attention (**MHA**) each query head has a key and a value head of its own. Grouped
# queries (**GQA**) let several query heads read one key and value head; with one head for all it
# is called multi-query (**MQA**). Latent attention (**MLA**) keeps one compressed vector and a
# small rotary key, from which every head's keys and values could be rebuilt.
#
# Per token and layer, in numbers: `2 x KV heads x head size`, or `latent + rotary` for MLA.

# %%
import kvproof

for name in ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"):
    model = kvproof.load_model(name)
    size = kvproof.cache(model, tokens=1, dtype="bf16").bytes
    print(f"{model.name:28} {model.slots[0].kind:8} {size:>9,} B a token = {size / 1024:.1f} KiB")

# %% [markdown]
# ## Run
#
# Four caches for the same 32 query heads of 128. The bytes are read off the tensors. The predicted
# time is the planner's: the longer of the bytes over the memory's speed and of the operations over
# the processor's, both measured just before.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.attention()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# Fewer bytes a token mean more users in the same memory and less to read at each step, so sharing
# is the largest lever there is, and it is chosen when the model is trained. But bytes are not all:
# when many query heads read one key, each byte is used many times and the step is limited by
# arithmetic instead. On a GPU, with far more arithmetic per byte than a CPU, that comes later. With
# tensor parallelism one shared head can't be divided: each GPU keeps a copy, and the saving is lost
# there.
