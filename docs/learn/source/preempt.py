# %% [markdown]
# # The pool is full: swap or recompute
#
# Requests are admitted by what they need now, and grow while they run. When no block is left, one
# of them is paused. Its entries can be **copied** to the host and back, or **dropped** and computed
# again from its tokens in one parallel pass.
#
# `swap = 2 x bytes / link`, `recompute = 2 x parameters x tokens / arithmetic`

# %%
import kvproof

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
for tokens in (1000, 8000):
    moved = 2 * kvproof.cache(model, tokens=tokens).bytes / 1e9  # GB, out and back
    work = 2 * model.parameters * tokens / 1e12
    print(f"{tokens:,} tokens: {moved:.2f} GB at 50 GB/s: {1e3 * moved / 50:.0f} ms;", end=" ")
    print(f"{work:.0f} TFLOP at 400 TFLOP/s: {1e3 * work / 400:.0f} ms")

# %% [markdown]
# ## Run
#
# One sequence is paused both ways at several lengths. Then four requests share a pool that is too
# small for them, and must end with the same tokens as when each runs alone.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.preempt()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# Here memory is one and the same, so copying wins by far. Across a link to a GPU the gap is
# smaller, as the figures above say, and recomputing needs no host memory, no transfer beside the
# running batch and little bookkeeping: vLLM recomputes. Either way a preemption is time that a
# user waits. If the counter grows steadily, admit fewer requests or give the cache more memory.
