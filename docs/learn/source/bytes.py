# %% [markdown]
# # What the cache takes: bytes
#
# A decoder makes one token at a time. To make the next one, every attention layer compares the
# newest token's query with the **key** of each earlier token, and mixes their **values**. Keys and
# values of earlier tokens never change, so they are kept: that store is the KV cache.
#
# A full-attention layer keeps, for every token, one key and one value per KV head:
#
# `bytes = 2 x layers x KV heads x head size x bytes per number x tokens`
#
# The 2 is the key and the value. Query heads do not appear: only KV heads are kept.

# %%
import kvproof

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
slot = model.slots[0]
per_token = 2 * len(model.slots) * slot.kv_heads * slot.k_dim * 2
print(f"2 x {len(model.slots)} layers x {slot.kv_heads} heads x {slot.k_dim} x 2 B =", per_token)
print("kvproof, 4,096 tokens:", kvproof.cache(model, tokens=4096).bytes, "=", per_token, "x 4096")

# %% [markdown]
# Other layers keep other things, and the short formula has to be counted layer by layer:
#
# - a **sliding window** keeps the same entries, but only the last so many of them;
# - **latent** attention (MLA) keeps one short vector in place of all heads' keys and values;
# - **recurrent** and convolution layers keep a state whose size does not grow with the text;
# - **integers** need a scale: here four bytes for every 64 numbers, so "4 bit" is 4.5.
#
# ## Run
#
# The lab builds real pools of blocks for each kind and element type. The plan is made from the
# model's description; the measurement is the storage behind the tensors, and the memory that a
# fresh process gains.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.bytes()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# The bytes of a token are settled by the model and the element type, before anything runs, so
# memory can be planned to the byte: what is left beside the weights, over the bytes of a token, is
# how many tokens all users together can hold. A pool is allocated once at start; its size tells
# nothing about how full it is. What surprises people is seldom this formula: it is a layer that is
# not full attention, a scale that was forgotten, or heads that several GPUs each keep a copy of.
