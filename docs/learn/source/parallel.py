# %% [markdown]
# # One cache over several GPUs
#
# Tensor parallelism gives each rank a share of the heads, and with them their part of the cache.
# A KV head is not cut: with fewer KV heads than ranks each lives on several of them.
#
# `bytes a rank = bytes x max(1, KV heads / ranks) / KV heads`
#
# So Llama-3.1-8B's 8 KV heads divide well over 8 GPUs, and 16 GPUs hold the whole cache twice.

# %%
import kvproof

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
for ranks in (1, 2, 4, 8, 16):
    deployment = kvproof.Deployment(engine="formula", tensor_parallel_size=ranks)
    each = kvproof.capacity(model, deployment, kv_bytes=2**30).bytes_per_block
    print(f"ranks: {ranks:>2}; bytes a token: {each:>7,} on each, {ranks * each:>7,} on all")

# %% [markdown]
# ## Run
#
# Processes take the place of GPUs and add up their partial sums over gloo. Each generates the same
# tokens with its own heads and its own paged pool, and reports what its tensors take.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.parallel()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# More GPUs leave more memory for the cache, because the weights are shared out; but beyond as many
# ranks as KV heads a token costs each of them the same as before. With MQA or MLA that begins with
# the second rank: two GPUs hold two copies. Engines then give each rank requests of its own instead
# (data-parallel attention), so that every copy of a token is needed.
