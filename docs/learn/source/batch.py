# %% [markdown]
# # A batch shares the weights' read
#
# One decode step of one sequence reads every weight to make one token. A second sequence in the
# same step needs the same weights, so it costs only its own cache's bytes and some arithmetic.
#
# `step = (weights + cache of all sequences) / bandwidth`, until arithmetic takes longer
#
# Throughput climbs with the batch until the pool has no room, and then somebody waits.

# %%
import kvproof

model = kvproof.load_model("meta-llama/Llama-3.1-8B")
deployment = kvproof.Deployment(engine="formula", gpu="H100-80GB")
plan = kvproof.plan(model, deployment, contexts=[4096, 32768])
for row in plan.rows:
    alone, full = row.alone, row.step
    print(f"{row.context:>6,} tokens: {row.sequences} fit; one step alone", end=" ")
    print(f"{1e3 * alone.seconds:.1f} ms = {alone.tokens_per_second:,.0f} tokens/s;", end=" ")
    print(f"of all {1e3 * full.seconds:.1f} ms = {full.tokens_per_second:,.0f} tokens/s")

# %% [markdown]
# ## Run
#
# More and more requests are offered to a pool that holds six of them to the end.

# %%
from kvproof.lab import experiments
from kvproof.surfaces.lab import Chart, Table

result = experiments.batch()
Table(result)

# %%
Chart(result)

# %% [markdown]
# ## What this means for a server
#
# The cache decides how many may share a step, and with it what a GPU earns. Past the point where
# the pool is full, more requests add waiting and preemptions but no throughput: that is the load
# to stay below. Plan it at the lengths that requests really reach, at their 99th percentile rather
# than their mean, for a full pool does not slow down gently.
