# %% [markdown]
# # Decode time is bytes over bandwidth
#
# A decode step has one query for each sequence and uses every cached number once. That is too
# little arithmetic to keep a processor busy, so the time is what it takes to bring the bytes in:
#
# `attention = cached bytes / bandwidth`
#
# It is linear in the context, and narrower numbers are faster.

# %%
import kvproof

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
weights, speed = 15.0e9, 3.35e12  # streamed weights in bytes; an H100's memory in bytes a second
for tokens in (0, 32768, 131072):
    cached = kvproof.cache(model, tokens=tokens).bytes if tokens else 0
    seconds = (weights + cached) / speed
    speed_text = f"{1e3 * seconds:4.1f} ms, {1 / seconds:.0f} tokens/s"
    print(f"{tokens:>7,} tokens: {cached / 1e9:5.1f} GB of cache, {speed_text}")

# %% [markdown]
# ## Run
#
# One layer's attention kernel, at four lengths and four element types. The prediction is the
# planned bytes over the read bandwidth that was measured in the same run.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.bandwidth()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# A long conversation gets slower token by token although nothing else changed: it reads more. At
# some number of cached tokens in a batch the cache's bytes pass those of the weights, and from
# there on halving the cache's numbers helps more than halving the weights'. The share of the
# bandwidth that a kernel reaches is the number to compare kernels by; the rest is conversion and
# look-ups.
